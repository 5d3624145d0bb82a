// Generators as they are right after seeding, in the form that the source's states have.
#include "layouts/job/seeded_rng.h"

#include <string>

#include "args/run_args.h"
#include "state/words.h"

namespace optim {
namespace {

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = "rng_state"}, problem,
              "--rng drop leaves random states out, --rng keep takes the first rank's");
}

// As at::CPUGeneratorImpl lays its state out: mt19937 with 64 bits for each number, then what is
// left of normally distributed samples: nothing.
std::string torch_state(uint32_t seed) {
  struct Legacy {
    uint64_t initial_seed;
    int32_t left = 1, seeded = 1;
    uint64_t next = 0;
    uint64_t state[624];
    double normal_x = 0, normal_y = 0, normal_rho = 0;
    int64_t normal_is_valid = 0;
    int64_t next_float_normal = 0;
  } legacy{.initial_seed = seed, .state = {}};
  static_assert(sizeof(Legacy) == 5056);
  const TwisterState state = seeded_twister(seed);
  for (size_t i = 0; i < state.size(); ++i) legacy.state[i] = state[i];
  return std::string(reinterpret_cast<const char*>(&legacy), sizeof legacy);
}

// A CUDA generator's: seed and offset.
std::string cuda_state(uint64_t seed) {
  const uint64_t words[2] = {seed, 0};
  return std::string(reinterpret_cast<const char*>(words), sizeof words);
}

class Seeding {
 public:
  Seeding(const TargetJob& job, const RankCoordinates& at, ckpt::ArchiveBuilder& archive)
      : job_(job), at_(at), archive_(archive), tree_(archive.tree()) {}

  NodeId run() {
    const Value args = job_.source.args();
    const auto seed = args.find("seed");
    if (!seed || !seed->is(Kind::Int) || seed->as_int() <= 0 || seed->as_int() > INT32_MAX) {
      refuse("args.seed is not a positive number, so that random states cannot be seeded");
    }
    const bool per_data_rank = is_true(args, "data_parallel_random_init");
    const uint32_t ranks = per_data_rank ? job_.grid.sizes.data_parallel : 1;
    const NodeId list = tree_.list();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const auto of_stage = static_cast<uint32_t>(seed->as_int()) + 100 * at_.pp;
      tree_.append(list, state(of_stage + 10 * (per_data_rank ? rank : 0)));
    }
    return list;
  }

 private:
  // What the source's ranks have, by key and in their order.
  Value form() const {
    const RankRng& first = job_.source.rng_states.at(0);
    const Value list = job_.source.common.tree.value(first.value);
    if (!list.is(Kind::List) || list.size() == 0 || !list[0].is(Kind::Dict)) {
      refuse("the source's random state is not a list of dicts");
    }
    return list[0];
  }

  NodeId state(uint32_t seed) {
    const Value form = this->form();
    const NodeId state = tree_.dict();
    for (const auto& [key, value] : ckpt::items_of(form)) {
      const std::string name = ckpt::key_text(key);
      if (name == "random_rng_state") {
        tree_.put(state, name, python(seed));
      } else if (name == "np_rng_state") {
        tree_.put(state, name, numpy(value, seed));
      } else if (name == "torch_rng_state") {
        tree_.put(state, name, bytes_tensor(torch_state(seed)));
      } else if (name == "cuda_rng_state") {
        tree_.put(state, name, bytes_tensor(cuda_state(seed)));
      } else if (name == "rng_tracker_states" && value.is(Kind::Dict)) {
        tree_.put(state, name, trackers(value, seed));
      } else {
        refuse("the source's random state has '" + ckpt::escaped(name) + "', which is not known");
      }
    }
    return state;
  }

  NodeId bytes_tensor(std::string bytes) {
    const uint64_t count = bytes.size();
    return archive_.add_tensor(DType::UInt8, {count}, std::move(bytes));
  }

  // (3, (624 numbers, the next one's index), None)
  NodeId python(uint32_t seed) {
    std::vector<NodeId> numbers;
    for (const uint32_t number : keyed_twister(seed)) numbers.push_back(tree_.integer(number));
    numbers.push_back(tree_.integer(624));
    return tree_.tuple({tree_.integer(3), tree_.sequence(Kind::Tuple, numbers), tree_.none()});
  }

  // ('MT19937', array of 624 numbers, the next one's index, 0, 0.0), the array rebuilt as the
  // source's NumPy does.
  NodeId numpy(const Value& form, uint32_t seed) {
    const bool is_known = form.is(Kind::Tuple) && form.size() == 5 && form[1].is(Kind::Object) &&
                          form[1].state() && form[1].state()->is(Kind::Tuple) &&
                          form[1].state()->size() == 5;
    if (!is_known) refuse("the source's NumPy state is not an array of a Mersenne Twister");
    const NodeId carried = archive_.carry(form, job_.source.common);
    const Value array = tree_.value(carried)[1], array_state = *array.state();
    const TwisterState numbers = seeded_twister(seed);
    const std::string_view content(reinterpret_cast<const char*>(numbers.data()), sizeof numbers);
    const NodeId made =
        tree_.object(array.construction(), array.callable().id(), array.args().id());
    tree_.set_state(made,
                    tree_.tuple({array_state[0].id(), array_state[1].id(), array_state[2].id(),
                                 array_state[3].id(), tree_.bytes(content)}));
    return tree_.tuple(
        {tree_.str("MT19937"), made, tree_.integer(624), tree_.integer(0), tree_.real(0.0)});
  }

  NodeId trackers(const Value& form, uint32_t seed) {
    const NodeId states = tree_.dict();
    for (size_t i = 0; i < form.item_count(); ++i) {
      const std::string name = ckpt::key_text(form.item(i).first);
      uint64_t own = seed;
      if (name == "model-parallel-rng") {
        own += 2718 + at_.tp;
      } else if (name == "expert-parallel-rng") {
        own += 1024 + 100 * at_.ep + at_.etp;
      } else if (name != "data-parallel-rng") {
        refuse("the source's random state tracks '" + ckpt::escaped(name) +
               "', which is not known");
      }
      tree_.put(states, name, bytes_tensor(cuda_state(own)));
    }
    return states;
  }

  const TargetJob& job_;
  const RankCoordinates& at_;
  ckpt::ArchiveBuilder& archive_;
  ValueTree& tree_;
};

}  // namespace

NodeId seeded_rng(const TargetJob& job, const RankCoordinates& at, ckpt::ArchiveBuilder& archive) {
  return Seeding(job, at, archive).run();
}

}  // namespace optim
