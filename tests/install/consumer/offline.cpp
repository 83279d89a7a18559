#include <iostream>
#include <weir/offline.hpp>

int main() {
  const auto recording = weir::offline::recording::try_load("nothing", 7);
  std::cout << (recording ? "a recording" : weir::status_name(recording.error().status())) << '\n';
  return 0;
}
