// The change that the stored state makes of a parameter, at the stored learning rate and step
// count: what the last step did, if the rate has not changed since. The next gradient is not known,
// so that this is the next step's change as far as the state decides it.
//
//   Adam, AdamW  lr * (m^ / (sqrt(v^) + eps) + wd * w),  m^ = m / (1 - beta1^t), v^ = v / (1 -
//   beta2^t)
//                (Kingma and Ba 2015; Loshchilov and Hutter 2019; of Adam without wd * w, which it
//                adds to gradients)
//   Lion         lr * (sign(m) + wd * w)  (Chen et al. 2023, of a gradient of 0)
//   SGD          lr * momentum_buffer
//   Muon, SOAP   not computed: they need a Newton-Schulz iteration, or an eigenbasis
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include <training/optimizer_facts.h>

#include "report/page/rows.h"
#include "state/words.h"

namespace optim {
namespace {

std::optional<double> number(const std::optional<Value>& value) {
  const bool is_number = value && (value->is(Kind::Float) || value->is(Kind::Int));
  return is_number ? std::optional(value->as_float()) : std::nullopt;
}

// What a group of the parameter's optimizer says.
struct Rule {
  std::string name;
  std::optional<double> lr, beta1, beta2, eps, step;
  double weight_decay = 0;
  bool corrects_bias = true;
};

Rule rule_of_group(const StoredGroup& group, const Summary& summary) {
  Rule rule{rule_of(group, summary.run), number_of(group, "lr"),  {}, {},
            number_of(group, "eps"),     number_of(group, "step")};
  rule.weight_decay = number_of(group, "weight_decay").value_or(0);
  const auto corrects = setting_of(group, "bias_correction");
  rule.corrects_bias = !corrects || !corrects->is(Kind::Bool) || corrects->as_bool();
  const auto betas = setting_of(group, "betas");
  if (betas && (betas->is(Kind::Tuple) || betas->is(Kind::List)) && betas->size() == 2) {
    rule.beta1 = number((*betas)[0]);
    rule.beta2 = number((*betas)[1]);
  }
  if (!rule.step && summary.step) rule.step = static_cast<double>(*summary.step);
  return rule;
}

bool is_read_as_numbers(DType dtype) { return dtype == DType::Float32 || dtype == DType::BFloat16; }

// Elements of a box of a float32 or bfloat16 tensor.
std::vector<double> read_numbers(const OpenedTraining& checkpoint, const TensorEntry& tensor,
                                 const Box& box) {
  const uint64_t count = ckpt::element_count(box.sizes);
  std::vector<std::byte> bytes(count * ckpt::bytes_per_element(tensor.dtype));
  checkpoint.read(tensor, box, bytes);
  std::vector<double> numbers(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    if (tensor.dtype == DType::Float32) {
      std::memcpy(&bits, bytes.data() + 4 * i, 4);
    } else {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      bits = static_cast<uint32_t>(half) << 16;
    }
    numbers[i] = static_cast<double>(std::bit_cast<float>(bits));
  }
  return numbers;
}

// The rows of one parameter.
struct Param {
  size_t weight = 0;                   // index of its row
  const TensorEntry* value = nullptr;  // the master, or the weight
  std::map<std::string, size_t> states;
};

std::vector<Param> params_of(const ReportRows& rows) {
  std::vector<Param> params;
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    const ReportedTensor& row = rows.tensors[i];
    if (row.tensor.role == KeyKind::Model) {
      params.push_back({i, rows.entries[i].get(), {}});
    } else if (!params.empty() &&
               row.tensor.name == rows.tensors[params.back().weight].tensor.name) {
      params.back().states.emplace(row.tensor.state, i);
      if (row.tensor.state == "fp32_param") params.back().value = rows.entries[i].get();
    }
  }
  std::erase_if(params, [](const Param& param) { return param.states.empty(); });
  return params;
}

class UpdateReader {
 public:
  UpdateReader(const OpenedTraining& checkpoint, const Summary& summary, const ReportRows& rows)
      : checkpoint_(checkpoint), rows_(rows) {
    for (const StoredGroup& group : summary.groups.groups) {
      rules_.emplace(std::pair(group.optimizer, group.group), rule_of_group(group, summary));
    }
  }

  UpdateNorm read(const Param& param) const {
    UpdateNorm update{.tensor = param.weight, .norm = {}, .rule = {}, .reason = {}};
    const ReportedTensor& row = rows_.tensors[param.weight];
    const auto rule = row.group ? rules_.find({*row.optimizer, *row.group}) : rules_.end();
    if (rule == rules_.end()) {
      update.reason = "which group it belongs to is not known";
      return update;
    }
    update.rule = rule->second.name;
    try {
      add_norm(param, rule->second, update);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::IoFailure) throw;
      update.reason = error.problem();
    }
    return update;
  }

 private:
  void add_norm(const Param& param, const Rule& rule, UpdateNorm& update) const {
    if (!rule.lr) {
      update.reason = "its group states no learning rate";
    } else if (rule.name == "AdamW" || rule.name == "Adam") {
      add_adam(param, rule, update);
    } else if (rule.name == "Lion") {
      add_simple(param, rule, update, "exp_avg");
    } else if (rule.name == "SGD") {
      add_simple(param, rule, update, "momentum_buffer");
    } else if (rule.name == "Muon" || rule.name == "AdaptiveMuon") {
      update.reason = "the update of Muon takes a Newton-Schulz iteration";
    } else {
      update.reason = "no formula for this rule";
    }
  }

  const TensorEntry* state_of(const Param& param, const std::string& name) const {
    const auto found = param.states.find(name);
    if (found == param.states.end()) return nullptr;
    const TensorEntry& entry = *rows_.entries[found->second];
    return entry.shape == param.value->shape && is_read_as_numbers(entry.dtype) ? &entry : nullptr;
  }

  void add_adam(const Param& param, const Rule& rule, UpdateNorm& update) const {
    const TensorEntry* const first = state_of(param, "exp_avg");
    const TensorEntry* const second = state_of(param, "exp_avg_sq");
    if (first == nullptr || second == nullptr || !is_read_as_numbers(param.value->dtype)) {
      update.reason = "its moments are not float32 or bfloat16 tensors of its shape";
      return;
    }
    if (!rule.beta1 || !rule.beta2 || !rule.eps || !rule.step || *rule.step < 1) {
      update.reason = "betas, eps or the step count are not stated";
      return;
    }
    const auto scale = [&](double beta) {
      return rule.corrects_bias ? 1 / (1 - std::pow(beta, *rule.step)) : 1;
    };
    const double first_scale = scale(*rule.beta1), second_scale = scale(*rule.beta2);
    const double decay = rule.name == "AdamW" ? rule.weight_decay : 0;
    sum_up(param, update, [&](const Box& box) {
      std::vector<double> m = read_numbers(checkpoint_, *first, box);
      const std::vector<double> v = read_numbers(checkpoint_, *second, box);
      const std::vector<double> w = read_numbers(checkpoint_, *param.value, box);
      for (size_t i = 0; i < m.size(); ++i) {
        const double root = std::sqrt(v[i] * second_scale);
        m[i] = *rule.lr * (m[i] * first_scale / (root + *rule.eps) + decay * w[i]);
      }
      return m;
    });
  }

  void add_simple(const Param& param, const Rule& rule, UpdateNorm& update,
                  const std::string& state) const {
    const TensorEntry* const momentum = state_of(param, state);
    if (momentum == nullptr || !is_read_as_numbers(param.value->dtype)) {
      update.reason = "it has no " + state + " in float32 or bfloat16 of its shape";
      return;
    }
    const bool is_lion = rule.name == "Lion";
    sum_up(param, update, [&](const Box& box) {
      std::vector<double> m = read_numbers(checkpoint_, *momentum, box);
      if (!is_lion) {
        for (double& value : m) value *= *rule.lr;
        return m;
      }
      const std::vector<double> w = read_numbers(checkpoint_, *param.value, box);
      for (size_t i = 0; i < m.size(); ++i) {
        const double sign = m[i] > 0 ? 1 : m[i] < 0 ? -1 : 0;
        m[i] = *rule.lr * (sign + rule.weight_decay * w[i]);
      }
      return m;
    });
  }

  // `change` gives the changes of the elements of a box.
  template <class Change>
  static void sum_up(const Param& param, UpdateNorm& update, Change change) {
    const uint64_t count = ckpt::element_count(param.value->shape);
    if (count == 0) {
      update.norm = 0;
      return;
    }
    double squares = 0;
    uint64_t seen = 0;
    for (const Box& box : spread_boxes(param.value->shape, kUpdateElements)) {
      const std::vector<double> values = change(box);
      for (const double value : values) squares += value * value;
      seen += values.size();
    }
    update.is_estimate = seen != count;
    const double norm = std::sqrt(squares / static_cast<double>(seen) * static_cast<double>(count));
    if (std::isfinite(norm)) {
      update.norm = norm;
    } else {
      update.reason = "the state holds NaN or infinity";
    }
  }

  const OpenedTraining& checkpoint_;
  const ReportRows& rows_;
  std::map<std::pair<uint32_t, uint32_t>, Rule> rules_;
};

}  // namespace

std::vector<UpdateNorm> list_updates(const OpenedTraining& checkpoint, const Summary& summary,
                                     const ReportRows& rows) {
  const UpdateReader reader(checkpoint, summary, rows);
  std::vector<UpdateNorm> updates;
  for (const Param& param : params_of(rows)) updates.push_back(reader.read(param));
  return updates;
}

}  // namespace optim
