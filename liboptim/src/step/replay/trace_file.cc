#include "step/replay/trace_file.h"

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>
#include <algorithm>
#include <utility>

#include "step/replay/json_file.h"

namespace optim {
namespace {

using nlohmann::json;

// A trace's JSON, read with errors that name the file and the field.
class Fields {
 public:
  Fields(std::string file, json object) : file_(std::move(file)), object_(std::move(object)) {}

  template <class T>
  T get(const std::string& field) const {
    const auto found = object_.find(field);
    if (found == object_.end()) refuse(field, "is missing");
    try {
      return found->get<T>();
    } catch (const json::exception&) {
      refuse(field, "has a value of the wrong type");
    }
  }
  Fields object(const std::string& field) const {
    const auto value = get<json>(field);
    if (!value.is_object()) refuse(field, "is no object");
    return {file_, value};
  }
  const json& raw() const { return object_; }

  [[noreturn]] void refuse(const std::string& field, const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file_, .key = field}, problem);
  }
  [[noreturn]] void refuse_unsupported(const std::string& field, const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file_, .key = field}, problem);
  }

 private:
  std::string file_;
  json object_;
};

Fields read_fields(const std::filesystem::path& path) {
  const std::string file = path.string();
  json object = read_json_file(path);
  const bool is_trace = object.is_object() && object.contains("name") &&
                        object.contains("config") && object.contains("params");
  if (!is_trace) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = file},
                      "'" + path.filename().string() + "' is no trace");
  }
  return {file, std::move(object)};
}

// An enumerator by the reference's spelling of it.
template <class Enum>
Enum enumerator(const Fields& fields, const std::string& field, std::initializer_list<Enum> all) {
  const auto text = fields.get<std::string>(field);
  for (const Enum value : all) {
    if (name(value) == text) return value;
  }
  fields.refuse_unsupported(field, "'" + text + "' is not supported");
}

// How far a correct implementation may be from the recorded values: docs/optimizer.md,
// "Tolerances", argues each.
constexpr TraceBound kElementwiseBound = {.max_ulp = 4};
constexpr TraceBound kMuonFp32Bound = {.max_scaled = 1e-6};
constexpr TraceBound kMuonCansBound = {.max_scaled = 4e-6};
constexpr TraceBound kMuonBf16Bound = {.max_scaled = 5e-4};

TraceBound bound_of(const MuonRule& rule) {
  const NewtonSchulzOptions& options = rule.newton_schulz;
  if (options.precision == MatmulPrecision::Medium) return kMuonBf16Bound;
  return options.coefficients == NsCoefficients::Cans ? kMuonCansBound : kMuonFp32Bound;
}

AdamRule adam_rule(const Fields& config, bool decoupled) {
  AdamRule rule;
  const auto betas = config.get<std::vector<double>>("betas");
  if (betas.size() != 2) config.refuse("betas", "are not two numbers");
  rule.beta1 = betas[0];
  rule.beta2 = betas[1];
  rule.eps = config.get<double>("eps");
  rule.decoupled_weight_decay = decoupled;
  return rule;
}

MuonRule muon_rule(const Fields& config) {
  using enum NsCoefficients;
  MuonRule rule;
  rule.momentum = config.get<double>("momentum");
  rule.nesterov = config.get<bool>("nesterov");
  rule.weight_decay_method = config.get<bool>("use_decoupled_weight_decay")
                                 ? WeightDecayMethod::Decoupled
                                 : WeightDecayMethod::L2;
  rule.newton_schulz.steps = config.get<int64_t>("num_ns_steps");
  rule.newton_schulz.coefficients = enumerator(
      config, "coefficient_type", {Simple, Quintic, PolarExpress, Cans, Aol, DeepseekV4});
  rule.newton_schulz.precision =
      enumerator(config, "fp32_matmul_prec",
                 {MatmulPrecision::Highest, MatmulPrecision::High, MatmulPrecision::Medium});
  rule.scale_mode = enumerator(
      config, "scale_mode",
      {MuonScaleMode::Spectral, MuonScaleMode::UnitRmsNorm, MuonScaleMode::ShapeScaling});
  rule.extra_scale_factor = config.get<double>("extra_scale_factor");
  if (config.get<bool>("split_qkv")) {
    const auto rows = config.get<std::vector<int64_t>>("qkv_split_shapes");
    if (rows.size() != 3) config.refuse("qkv_split_shapes", "are not three numbers");
    rule.qkv_split = QkvSplit{rows[0], rows[1], rows[2]};
  }
  return rule;
}

WeightDecayMethod decay_method(const Fields& config) {
  const auto text = config.get<std::string>("weight_decay_method");
  if (text == "decoupled") return WeightDecayMethod::Decoupled;
  if (text == "independent") return WeightDecayMethod::Independent;
  if (text == "l2") return WeightDecayMethod::L2;
  if (text == "palm") return WeightDecayMethod::Palm;
  config.refuse_unsupported("weight_decay_method", "'" + text + "' is not supported");
}

LionRule lion_rule(const Fields& config) {
  const auto betas = config.get<std::vector<double>>("betas");
  if (betas.size() != 2) config.refuse("betas", "are not two numbers");
  return {betas[0], betas[1], decay_method(config)};
}

// torch.optim.Muon: one polynomial for all steps, and a learning rate that depends on the shape.
MuonRule torch_muon_rule(const Fields& config) {
  MuonRule rule;
  rule.momentum = config.get<double>("momentum");
  rule.nesterov = config.get<bool>("nesterov");
  rule.newton_schulz.steps = config.get<int64_t>("ns_steps");
  const auto row = config.get<std::vector<double>>("ns_coefficients");
  if (row.size() != 3) config.refuse("ns_coefficients", "are not three numbers");
  rule.newton_schulz.coefficients = NsCoefficients::Custom;
  rule.newton_schulz.custom = {{row[0], row[1], row[2]}};
  const auto adjust = config.get<std::string>("adjust_lr_fn");
  if (adjust == "original") {
    rule.scale_mode = MuonScaleMode::ShapeScaling;
  } else if (adjust == "match_rms_adamw") {
    rule.extra_scale_factor = 0.2;
  } else {
    config.refuse_unsupported("adjust_lr_fn", "'" + adjust + "' is not supported");
  }
  return rule;
}

void read_rule(const Fields& fields, TraceHeader& header) {
  const Fields config = fields.object("config");
  const auto kind = config.get<std::string>("class");
  header.lr = config.get<double>("lr");
  header.weight_decay = config.get<double>("weight_decay");
  if (kind == "torch.optim.AdamW" || kind == "torch.optim.Adam") {
    header.rule = adam_rule(config, kind == "torch.optim.AdamW");
    header.bound = kElementwiseBound;
  } else if (kind == "megatron TensorParallelMuon") {
    const MuonRule rule = muon_rule(config);
    header.rule = rule;
    header.bound = bound_of(rule);
  } else if (kind == "torch.optim.SGD") {
    header.rule = SgdRule{config.get<double>("momentum")};
    header.bound = kElementwiseBound;
  } else if (kind == "emerging_optimizers Lion") {
    header.rule = lion_rule(config);
    header.bound = kElementwiseBound;
  } else if (kind == "torch.optim.Muon") {
    header.rule = torch_muon_rule(config);
    header.bound = kMuonBf16Bound;
  } else {
    config.refuse_unsupported("class", "traces of '" + kind + "' cannot be replayed");
  }
}

constexpr size_t kDimsMax = 8;
constexpr int64_t kElementsMax = int64_t{1} << 31;

std::vector<ParamInfo> read_params(const Fields& fields) {
  std::vector<ParamInfo> params;
  const auto qkv = fields.get<std::vector<std::string>>("qkv_params");
  const Fields shapes = fields.object("params");
  for (const auto& [name, shape] : shapes.raw().items()) {
    ParamInfo info;
    info.name = name;
    const bool is_shape = shape.is_array() && shape.size() <= kDimsMax &&
                          std::all_of(shape.begin(), shape.end(), [](const json& size) {
                            return size.is_number_unsigned() && size.get<uint64_t>() < kElementsMax;
                          });
    if (!is_shape) fields.refuse("params", "'" + name + "' has no shape");
    info.shape = shape.get<std::vector<int64_t>>();
    info.attributes.is_qkv = std::find(qkv.begin(), qkv.end(), name) != qkv.end();
    params.push_back(std::move(info));
  }
  if (params.empty()) fields.refuse("params", "are none");
  return params;
}

std::filesystem::path tensors_path(std::filesystem::path json_file) {
  return json_file.replace_extension(".safetensors");
}

}  // namespace

TraceHeader read_trace_header(const std::filesystem::path& json_file) {
  const Fields fields = read_fields(json_file);
  TraceHeader header;
  header.name = fields.get<std::string>("name");
  read_rule(fields, header);
  header.params = read_params(fields);
  return header;
}

Trace::Trace(const std::filesystem::path& json_file)
    : header_(read_trace_header(json_file)),
      tensors_(ckpt::Checkpoint::open(tensors_path(json_file))),
      tensors_file_(tensors_path(json_file).string()),
      step_count_(count_steps()) {}

int64_t Trace::count_steps() const {
  int64_t count = 0;
  const std::string& first = header_.params.front().name;
  while (tensors_.catalog().find_tensor("grad" + std::to_string(count) + "." + first)) ++count;
  if (count == 0) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = tensors_file_, .key = "grad0." + first},
                      "is missing: a trace has at least one step");
  }
  return count;
}

at::Tensor Trace::initial(const ParamInfo& param) const {
  return read("init." + param.name, param);
}

at::Tensor Trace::grad(int64_t step, const ParamInfo& param) const {
  return read("grad" + std::to_string(step) + "." + param.name, param);
}

at::Tensor Trace::after(int64_t step, std::string_view what, const ParamInfo& param) const {
  return read("step" + std::to_string(step) + "." + std::string(what) + "." + param.name, param);
}

at::Tensor Trace::read(const std::string& key, const ParamInfo& param) const {
  const auto refuse = [&](const std::string& problem) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = tensors_file_, .key = key}, problem);
  };
  const ckpt::TensorEntry* const entry = tensors_.catalog().find_tensor(key);
  if (entry == nullptr) refuse("is missing");
  const ckpt::Extents shape(param.shape.begin(), param.shape.end());
  if (entry->shape != shape) refuse("has another shape than the trace's JSON says");
  if (entry->dtype != ckpt::DType::Float32) refuse("is not float32");
  return load_tensor(tensors_, *entry);
}

}  // namespace optim
