/*
 * weir/offline.h for C++17 and later: recordings of memory history, replayed, explained and predicted. Header-only, for
 * libweir_offline; libweir is not needed.
 *
 *     weir::offline::recording recording("snapshot.pickle");
 *     weir::offline::replayer replayer(recording);
 *     weir_offline_result result = replayer.predict("expandable_segments:True");
 *
 * A call that fails throws weir::error; its twin with the prefix try_ returns a weir::result (weir/error.hpp).
 */
#ifndef WEIR_OFFLINE_HPP
#define WEIR_OFFLINE_HPP

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weir/error.hpp"
#include "weir/offline.h"

namespace weir {
namespace offline {

namespace detail {

// Not weir_last_error(), which does not know the errors of this library.
[[gnu::cold]] inline error failure(weir_status status) noexcept { return error(status, weir_offline_last_error()); }

// A struct of the C interface, with its defaults or zero.
template <class T, void (*Init)(T *)> T initialized() noexcept {
  T made;
  Init(&made);
  return made;
}
template <class T> result<T> attempted(weir_status status, T &value) noexcept {
  if (status != WEIR_OK)
    return failure(status);
  return std::move(value);
}

} // namespace detail

// The options with their defaults, to change before a call.
inline weir_offline_load_options load_options() noexcept {
  return detail::initialized<weir_offline_load_options, weir_offline_load_options_init>();
}
inline weir_offline_replay_options replay_options() noexcept {
  return detail::initialized<weir_offline_replay_options, weir_offline_replay_options_init>();
}
inline weir_offline_predict_options predict_options() noexcept {
  return detail::initialized<weir_offline_predict_options, weir_offline_predict_options_init>();
}
inline weir_offline_explain_options explain_options() noexcept {
  return detail::initialized<weir_offline_explain_options, weir_offline_explain_options_init>();
}
inline weir_offline_plot_options plot_options() noexcept {
  return detail::initialized<weir_offline_plot_options, weir_offline_plot_options_init>();
}

// A recording. It does not change, so copies share it; any number of threads may use one.
class recording {
public:
  explicit recording(const char *path, const weir_offline_load_options &options = load_options())
      : recording(try_load(path, options).value()) {}
  explicit recording(const std::string &path, const weir_offline_load_options &options = load_options())
      : recording(path.c_str(), options) {}
  // The contents of a file, which are not used after the call.
  recording(const void *bytes, std::size_t size, const weir_offline_load_options &options = load_options())
      : recording(try_load(bytes, size, options).value()) {}

  static result<recording> try_load(const char *path,
                                    const weir_offline_load_options &options = load_options()) noexcept {
    weir_offline_recording *made = nullptr;
    if (weir_status status = weir_offline_recording_load(path, &options, &made))
      return detail::failure(status);
    return owner_of(made);
  }
  static result<recording> try_load(const void *bytes, std::size_t size,
                                    const weir_offline_load_options &options = load_options()) noexcept {
    weir_offline_recording *made = nullptr;
    if (weir_status status = weir_offline_recording_load_memory(bytes, size, &options, &made))
      return detail::failure(status);
    return owner_of(made);
  }
  const weir_offline_recording *get() const noexcept { return recording_.get(); }

  // What it has of a device. -1, here and below, is the first on which memory ran out, or else the first with a
  // history.
  weir_offline_info info(int device = -1) const { return try_info(device).value(); }
  result<weir_offline_info> try_info(int device = -1) const noexcept {
    auto info = detail::initialized<weir_offline_info, weir_offline_info_init>();
    return detail::attempted(weir_offline_recording_get_info(get(), device, &info), info);
  }

  // What it has of each device, in the order of their numbers.
  std::vector<weir_offline_info> devices() const { return try_devices().value(); }
  result<std::vector<weir_offline_info>> try_devices() const noexcept {
    return weir::detail::allocating([&]() -> result<std::vector<weir_offline_info>> {
      std::vector<weir_offline_info> all;
      auto first = try_info();
      if (!first)
        return first.error();
      for (int device = 0; device < first->device_count; device++) {
        auto info = try_info(device);
        if (!info)
          return info.error();
        all.push_back(*info);
      }
      return all;
    });
  }

  // Why the first request that ran out of memory did so. Fails with WEIR_ERROR_INVALID_ARGUMENT if none did.
  weir_offline_explanation explain(const weir_offline_explain_options &options = explain_options()) const {
    return try_explain(options).value();
  }
  result<weir_offline_explanation>
  try_explain(const weir_offline_explain_options &options = explain_options()) const noexcept {
    auto explanation = detail::initialized<weir_offline_explanation, weir_offline_explanation_init>();
    return detail::attempted(weir_offline_recording_explain(get(), &options, &explanation), explanation);
  }

  // A picture: an SVG document.
  std::string plot(const weir_offline_plot_options &options = plot_options()) const {
    return try_plot(options).value();
  }
  result<std::string> try_plot(const weir_offline_plot_options &options = plot_options()) const noexcept {
    return weir::detail::allocating([&]() -> result<std::string> {
      std::string svg;
      if (weir_status status = weir_offline_recording_plot(get(), &options, append, &svg))
        return detail::failure(status);
      return svg;
    });
  }

private:
  static int append(void *svg, const void *bytes, std::size_t length) noexcept {
    auto attempt = [&]() -> result<void> {
      static_cast<std::string *>(svg)->append(static_cast<const char *>(bytes), length);
      return {};
    };
    return weir::detail::allocating(attempt) ? 0 : ENOMEM; // no exception may pass through C
  }
  friend class replayer;
  recording(weir_offline_recording *owned, int) : recording_(owned, weir_offline_recording_destroy) {}
  static result<recording> owner_of(weir_offline_recording *owned) noexcept { // destroys it if it fails
    return weir::detail::allocating([&]() -> result<recording> { return recording(owned, 0); });
  }
  std::shared_ptr<weir_offline_recording> recording_;
};

// The history of a device, ready to be replayed. It keeps the recording.
class replayer {
public:
  explicit replayer(const recording &recording, const weir_offline_replay_options &options = replay_options())
      : replayer(try_create(recording, options).value()) {}
  static result<replayer> try_create(const recording &recording,
                                     const weir_offline_replay_options &options = replay_options()) noexcept {
    weir_offline_replayer *made = nullptr;
    if (weir_status status = weir_offline_replayer_create(recording.get(), &options, &made))
      return detail::failure(status);
    return replayer(recording, made);
  }
  replayer(replayer &&) noexcept = default;
  replayer &operator=(replayer &&other) noexcept {
    replayer_ = std::move(other.replayer_); // before the recording, which the old one refers to
    recording_ = std::move(other.recording_);
    return *this;
  }
  const weir_offline_replayer *get() const noexcept { return replayer_.get(); }

  // The replay under the recorded settings, compared with the recording.
  weir_offline_result check() const { return try_check().value(); }
  result<weir_offline_result> try_check() const noexcept {
    auto outcome = detail::initialized<weir_offline_result, weir_offline_result_init>();
    return detail::attempted(weir_offline_replayer_check(get(), &outcome), outcome);
  }

  // What the job would have done under other settings, as in WEIR_ALLOC_CONF, or with other memory.
  weir_offline_result predict(const weir_offline_predict_options &options) const {
    return try_predict(options).value();
  }
  weir_offline_result predict(const char *conf) const { return try_predict(conf).value(); }
  result<weir_offline_result> try_predict(const weir_offline_predict_options &options) const noexcept {
    auto outcome = detail::initialized<weir_offline_result, weir_offline_result_init>();
    return detail::attempted(weir_offline_replayer_predict(get(), &options, &outcome), outcome);
  }
  result<weir_offline_result> try_predict(const char *conf) const noexcept {
    auto options = predict_options();
    options.conf = conf;
    return try_predict(options);
  }

private:
  replayer(const recording &recording, weir_offline_replayer *owned) noexcept
      : recording_(recording.recording_), replayer_(owned) {}
  std::shared_ptr<weir_offline_recording> recording_; // destroyed after the replayer
  weir::detail::handle<weir_offline_replayer, weir_offline_replayer_destroy> replayer_;
};

// The name of a cause, such as "fragmented".
inline const char *name(weir_offline_cause cause) noexcept { return weir_offline_cause_name(cause); }

} // namespace offline
} // namespace weir

#endif
