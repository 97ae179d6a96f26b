#include "cli/interrupt.h"

#include <csignal>
#include <cstdio>
#include <thread>

namespace carope {
namespace {

std::atomic<bool> polite = false;  // somebody listens
std::atomic<bool> speaking = true;
std::atomic<bool> interrupted = false;
std::atomic<bool> hears_hangups = false;  // or was told not to, by nohup

sigset_t interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);  // of schedulers, and of mpirun when a rank has ended
  if (hears_hangups) {
    sigaddset(&signals, SIGHUP);  // of a terminal that is gone
  }
  return signals;
}

void end_at_once(int signal) {
  const sigset_t signals = interrupts();
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::raise(signal);
}

void watch() {
  const sigset_t signals = interrupts();
  for (int signal = 0; sigwait(&signals, &signal) == 0;) {
    if (signal != SIGINT && interrupted) {
      continue;  // a launcher's, as another rank has ended: this one is about to, in order
    }
    if (!polite || interrupted.exchange(true)) {
      end_at_once(signal);
    }
    if (speaking) {
      std::fputs("\nstopping after this step; Ctrl-C again stops at once\n", stderr);
    }
  }
}

}  // namespace

void watch_for_interrupts() {
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  hears_hangups = hangup.sa_handler != SIG_IGN;
  const sigset_t signals = interrupts();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in all threads to come
  std::thread(watch).detach();
}

PoliteStop::PoliteStop(bool speaks) {
  interrupted = false;
  speaking = speaks;
  polite = true;
}

PoliteStop::~PoliteStop() { polite = false; }

const std::atomic<bool>& PoliteStop::asked() const { return interrupted; }

void PoliteStop::ask() const { interrupted = true; }

}  // namespace carope
