// A list of the most recent entries.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace weir_torch {

// The most recent entries; the oldest are dropped first.
template <typename T> class Ring {
public:
  void limit(size_t most) {
    if (most < 1)
      most = 1;
    if (most != most_) {
      std::vector<T> kept = entries();
      if (kept.size() > most)
        kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(most));
      entries_ = std::move(kept);
      next_ = 0;
      most_ = most;
    }
  }

  void add(T entry) {
    if (entries_.size() < most_) {
      entries_.push_back(std::move(entry));
    } else {
      entries_[next_] = std::move(entry);
      next_ = next_ + 1 == most_ ? 0 : next_ + 1;
    }
  }

  void clear() {
    std::vector<T>().swap(entries_);
    next_ = 0;
  }

  std::vector<T> entries() const {
    std::vector<T> all;
    all.reserve(entries_.size());
    all.insert(all.end(), entries_.begin() + static_cast<std::ptrdiff_t>(next_), entries_.end());
    all.insert(all.end(), entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(next_));
    return all;
  }

private:
  std::vector<T> entries_;
  size_t next_ = 0; // the index of the oldest entry once the ring is full
  size_t most_ = 1;
};

} // namespace weir_torch
