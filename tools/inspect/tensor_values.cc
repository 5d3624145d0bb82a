#include "inspect/show_tensor.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/slice.h>
#include <ckpt/tensor_stream.h>
#include <ckpt/text.h>

namespace tools::inspect {
namespace {

constexpr uint64_t kBlockElements = 1 << 16;
constexpr uint64_t kJsonValuesMax = 10'000'000;
constexpr size_t kIndent = 2;

// The first elements of a tensor as text, read in blocks.
class ValueTexts {
 public:
  ValueTexts(const TensorSource& from, uint64_t values_max)
      : stream_(from.tensor, from.source),
        dtype_(from.tensor.dtype),
        left_(std::min(values_max, ckpt::element_count(from.tensor.shape))) {}

  uint64_t left() const { return left_ + (texts_.size() - next_); }

  std::string next() {
    if (next_ == texts_.size()) read_block();
    return std::move(texts_[next_++]);
  }

  // Of the block that is read first: the columns of what comes later may be wider.
  size_t width() {
    if (texts_.empty() && left_ > 0) read_block();
    size_t width = 0;
    for (const std::string& text : texts_) width = std::max(width, text.size());
    return width;
  }

 private:
  void read_block() {
    const uint64_t count = std::min(left_, kBlockElements);
    const uint64_t element_bytes = ckpt::bytes_per_element(dtype_);
    std::vector<std::byte> bytes(count * element_bytes);
    stream_.read(bytes);
    texts_.clear();
    next_ = 0;
    for (uint64_t i = 0; i < count; ++i) {
      texts_.push_back(
          ckpt::element_text(dtype_, std::span(bytes).subspan(i * element_bytes, element_bytes)));
    }
    left_ -= count;
  }

  ckpt::TensorStream stream_;
  ckpt::DType dtype_;
  uint64_t left_;
  std::vector<std::string> texts_;
  size_t next_ = 0;
};

class ValuePrinter {
 public:
  ValuePrinter(Console& console, const TensorSource& from, uint64_t values_max)
      : console_(console),
        shape_(from.tensor.shape),
        texts_(from, values_max),
        total_(ckpt::element_count(shape_)) {}

  void print() {
    line_ = std::string(kIndent, ' ');
    if (shape_.empty()) {
      line_ += texts_.left() == 0 ? "..." : texts_.next();
    } else if (total_ == 0) {
      line_ += "[]";
    } else {
      width_ = texts_.width();
      for (uint64_t row = 0; row * shape_.back() < total_; ++row) {
        if (!print_row(row)) break;
      }
    }
    end_line();
  }

 private:
  // Dimensions, of all but the last, that start anew with this row.
  size_t fresh_dims(uint64_t row) const {
    size_t fresh = 0;
    for (size_t d = shape_.size() - 1; d-- > 0 && row % shape_[d] == 0; row /= shape_[d]) ++fresh;
    return fresh;
  }

  // False where nothing follows that is to be shown.
  bool print_row(uint64_t row) {
    const uint64_t row_count = total_ / shape_.back();
    const size_t opened = fresh_dims(row) + 1;
    line_.append(shape_.size() - opened, ' ').append(opened, '[');
    for (uint64_t i = 0; i < shape_.back(); ++i) {
      if (texts_.left() == 0) return stop();
      const std::string text = texts_.next();
      add_item(std::string(width_ - std::min(width_, text.size()), ' ') + text +
               (i + 1 < shape_.back() ? "," : ""));
    }
    if (row + 1 == row_count) {
      line_.append(shape_.size(), ']');
      return false;
    }
    const size_t closed = fresh_dims(row + 1);
    line_.append(closed + 1, ']') += ",";
    end_line();
    if (closed > 0) end_line();
    line_ = std::string(kIndent, ' ');
    if (texts_.left() > 0) return true;
    line_.append(shape_.size() - closed - 1, ' ');
    return stop();
  }

  bool stop() {
    const bool is_fresh = line_.back() == '[' || line_.back() == ' ';
    is_fresh ? void(line_ += "...") : add_item("...");
    line_.append(shape_.size(), ']');
    return false;
  }

  // A row that is longer than the terminal is wide goes on below its first value.
  void add_item(const std::string& item) {
    const size_t start = kIndent + shape_.size();
    const auto width = console_.screen().width;
    const bool is_first = line_.back() == '[';
    const bool fits = !width || line_.size() + 1 + item.size() + shape_.size() <= *width;
    if (!fits && !is_first && line_.size() > start) {
      end_line();
      line_ = std::string(start, ' ') + item;
    } else {
      line_ += (is_first ? "" : " ") + item;
    }
  }

  void end_line() {
    line_.erase(line_.find_last_not_of(' ') + 1);
    console_.out() << line_ << '\n';
    line_.clear();
  }

  Console& console_;
  const ckpt::Extents& shape_;
  ValueTexts texts_;
  uint64_t total_;
  size_t width_ = 0;
  std::string line_;
};

nlohmann::json value_to_json(const std::string& text) {
  if (text == "True" || text == "False") return text == "True";
  if (text == "-0") return -0.0;
  if (const auto integer = ckpt::number_in<int64_t>(text)) return *integer;
  if (const auto integer = ckpt::number_in<uint64_t>(text)) return *integer;
  const auto number = ckpt::number_in<double>(text);
  if (number && std::isfinite(*number)) return *number;
  return text;
}

class ValueLists {
 public:
  ValueLists(const ckpt::Extents& shape, ValueTexts texts)
      : shape_(shape), texts_(std::move(texts)) {}

  // Ends where the values do. Stops at the 64 dimensions that torch has at most.
  nlohmann::json list(size_t dim) {
    if (dim == shape_.size()) return value_to_json(texts_.next());
    nlohmann::json list = nlohmann::json::array();
    for (uint64_t i = 0; i < shape_[dim] && texts_.left() > 0; ++i)
      list.push_back(this->list(dim + 1));
    return list;
  }

 private:
  const ckpt::Extents& shape_;
  ValueTexts texts_;
};

}  // namespace

void print_values(Console& console, const TensorSource& from, uint64_t values_max) {
  ValuePrinter(console, from, values_max).print();
}

nlohmann::json values_to_json(const TensorSource& from, uint64_t values_max) {
  const ckpt::Extents& shape = from.tensor.shape;
  const uint64_t count = std::min(values_max, ckpt::element_count(shape));
  if (count > kJsonValuesMax || shape.size() > 64) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {from.tensor.file, {}, from.tensor.key},
                      "has " + std::to_string(count) + " values; --json shows at most " +
                          std::to_string(kJsonValuesMax),
                      "take a slice: 'KEY[0:100]', or --values without --json");
  }
  if (count == 0) return nlohmann::json::array();
  return ValueLists(shape, ValueTexts(from, values_max)).list(0);
}

}  // namespace tools::inspect
