#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "core/file.h"
#include "dist/communicator.h"
#include "dist/mpi.h"
#include "dist/watch.h"
#include "support/folder.h"
#include "support/program.h"
#include "support/training.h"
#include "train/checkpoint.h"

// What happens when a rank is lost. This program is also the rank that is: see be_a_rank.
namespace carope::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

constexpr seconds kTimeout(2);
constexpr milliseconds kSlack(6000);  // for a machine that does other things too
constexpr seconds kStart(40);         // for processes to start, also with sanitizers

/// What a process of a job does, by its argument: sums with the others for ever, only watches them,
/// or as the second rank fails, or never comes.
int be_a_rank(const std::string& what, const std::filesystem::path& folder) {
  const Launch launch = launch_from_environment();
  // mpirun's to the others when a rank has ended. As in a training, it must not end them before
  // they have said which.
  signal(SIGTERM, SIG_IGN);
  try {
    std::this_thread::sleep_for(what == "absent" && launch.rank == 1 ? kStart : seconds(0));
    std::unique_ptr<Communicator> ranks;
    std::unique_ptr<Watch> watch;
    if (what == "watch") {
      std::string gift = launch.rank == 0 ? "token" : "-";
      watch = meet_and_watch(launch, gift, kTimeout);
      check<Error>(gift == "token", "rank {} got '{}'", launch.rank, gift);
    } else {
      ranks = make_communicator(launch, {}, kTimeout);
    }
    write_bytes(folder / ("rank-" + std::to_string(launch.rank)), std::to_string(getpid()));
    Context ctx = Context::cpu(1);
    std::vector<float> values(1000);
    for (int i = 0;; ++i) {
      check<Error>(what != "fail" || launch.rank != 1 || i < 20, "the disk is full");
      if (ranks) {
        ranks->all_reduce(ctx, Tensor::of(values, {1000}));
        ranks->join(ctx);
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "carope: %s%s\n", speaker().c_str(), error.what());
    return EXIT_FAILURE;
  }
}

/// A process with its output in a file.
class Process {
 public:
  Process(const std::vector<std::string>& words, const std::filesystem::path& output)
      : output_(output) {
    std::vector<char*> arguments;
    for (const std::string& word : words) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool runs() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  std::string output() const { return read_file(output_); }

  /// What it returned; -1 where a signal ended it, -2 where it still runs after that time.
  int wait_for(milliseconds patience) {
    const auto end = Clock::now() + patience;
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > end) {
        return -2;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  std::filesystem::path output_;
  pid_t pid_ = 0;
};

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

/// The processes that say so in the folder, by rank; fewer than asked for where they do not come.
std::map<int, pid_t> wait_for_ranks(const TemporaryFolder& folder, int count,
                                    const Process& starter) {
  std::map<int, pid_t> ranks;
  const auto end = Clock::now() + kStart;
  while (static_cast<int>(ranks.size()) < count && Clock::now() < end && starter.runs()) {
    std::this_thread::sleep_for(milliseconds(10));
    for (int rank = 0; rank < count; ++rank) {
      std::ifstream file(folder / ("rank-" + std::to_string(rank)));
      if (pid_t pid = 0; file >> pid) {
        ranks[rank] = pid;
      }
    }
  }
  std::this_thread::sleep_for(milliseconds(200));  // they are at work
  return ranks;
}

/// A port that nobody has.
int free_port() { return Listener(0).port(); }

std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<std::string> mpirun() {
  std::istringstream words(CAROPE_MPIRUN);
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<std::string> environment(int rank, int size, int port) {
  return {"env",
          "RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(size),
          "LOCAL_RANK=" + std::to_string(rank),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

/// Ranks that watch each other and are started by hand: nobody else ends them.
struct WatchedJob {
  explicit WatchedJob(int size) {
    const int port = free_port();
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<std::string> words =
          with(environment(rank, size, port), {own_path(), "rank", "watch", folder.path()});
      processes.push_back(
          std::make_unique<Process>(words, folder / ("output-" + std::to_string(rank))));
    }
    started = static_cast<int>(wait_for_ranks(folder, size, *processes[0]).size()) == size;
  }
  Process& operator[](int rank) { return *processes[static_cast<std::size_t>(rank)]; }

  TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> processes;
  bool started = false;
};

std::string rank_here(int rank) { return fmt::format("rank {} on {}", rank, host_name()); }

TEST(Faults, ARankThatIsKilledEndsTheOthers) {
  for (const int killed : {2, 0}) {
    WatchedJob job(3);
    ASSERT_TRUE(job.started) << job[0].output();
    kill(job[killed].pid(), SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != killed) {
        EXPECT_EQ(job[rank].wait_for(kTimeout), 1);
        EXPECT_THAT(job[rank].output(), AllOf(HasSubstr("carope: " + rank_here(rank) + ": " +
                                                        rank_here(killed) + " ended early"),
                                              HasSubstr("--resume")));
      }
    }
  }
}

TEST(Faults, ARankThatIsStoppedEndsTheOthersAndThenItself) {
  std::array<WatchedJob, 2> jobs{WatchedJob(2), WatchedJob(3)};
  for (int stopped = 0; stopped < 2; ++stopped) {
    WatchedJob& job = jobs.at(static_cast<std::size_t>(stopped));
    ASSERT_TRUE(job.started) << job[0].output();
    kill(job[stopped].pid(), SIGSTOP);
  }
  const auto start = Clock::now();
  for (int stopped = 0; stopped < 2; ++stopped) {
    WatchedJob& job = jobs.at(static_cast<std::size_t>(stopped));
    for (int rank = 0; rank < static_cast<int>(job.processes.size()); ++rank) {
      if (rank != stopped) {
        EXPECT_EQ(job[rank].wait_for(kTimeout + kSlack), 1);
        EXPECT_THAT(job[rank].output(), HasSubstr(rank_here(rank) + ": " + rank_here(stopped) +
                                                  " has been silent for 2 s"));
      }
    }
    EXPECT_GT(Clock::now() - start, kTimeout / 2);
    kill(job[stopped].pid(), SIGCONT);
    EXPECT_EQ(job[stopped].wait_for(kSlack), 1);
    EXPECT_THAT(job[stopped].output(), HasSubstr("carope: " + rank_here(stopped)));
  }
}

TEST(Faults, AStopThatIsShorterThanTheTimeoutOrOfAllRanksIsNone) {
  WatchedJob briefly(2);
  WatchedJob all(2);
  ASSERT_TRUE(briefly.started) << briefly[0].output();
  ASSERT_TRUE(all.started) << all[0].output();
  kill(briefly[1].pid(), SIGSTOP);
  kill(all[0].pid(), SIGSTOP);
  kill(all[1].pid(), SIGSTOP);
  std::this_thread::sleep_for(kTimeout / 2);
  kill(briefly[1].pid(), SIGCONT);
  std::this_thread::sleep_for(kTimeout / 2 + milliseconds(500));
  kill(all[0].pid(), SIGCONT);
  kill(all[1].pid(), SIGCONT);
  std::this_thread::sleep_for(
      milliseconds(700));  // they hear each other again, or that they did not
  for (WatchedJob* job : {&briefly, &all}) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ((*job)[rank].wait_for(milliseconds(0)), -2) << (*job)[rank].output();
    }
  }
}

TEST(Faults, ARankThatNeverComesEndsTheOthers) {
  TemporaryFolder folder;
  Process first(with(environment(0, 2, free_port()), {own_path(), "rank", "watch", folder.path()}),
                folder / "first");
  Process second(with(environment(1, 2, free_port()), {own_path(), "rank", "watch", folder.path()}),
                 folder / "second");
  std::unique_ptr<Process> by_mpi;
  if (mpi::compiled()) {
    by_mpi = std::make_unique<Process>(
        with(mpirun(), {"-np", "2", own_path(), "rank", "absent", folder.path()}), folder / "mpi");
  }
  const milliseconds patience = patience_for(kTimeout) + kSlack;
  EXPECT_EQ(first.wait_for(patience), 1);
  EXPECT_THAT(first.output(), AllOf(HasSubstr(rank_here(0) + ": 1 of 2 ranks came to port"),
                                    HasSubstr("missing: 1;")));
  EXPECT_EQ(second.wait_for(patience), 1);
  EXPECT_THAT(second.output(), HasSubstr(rank_here(1) + ": rank 0 could not be met at 127.0.0.1"));
  if (by_mpi) {
    EXPECT_EQ(by_mpi->wait_for(patience), 1);
    EXPECT_THAT(by_mpi->output(),
                HasSubstr(rank_here(0) + ": MPI has not brought 2 ranks together within 5 s"));
  }
}

class CutLink : public testing::TestWithParam<const char*> {};

TEST_P(CutLink, EndsBothSides) {
  const bool by_mpi = GetParam() == std::string("sum");
  if (by_mpi && !mpi::compiled()) {
    GTEST_SKIP() << "built without MPI";
  }
  TemporaryFolder folder;
  Process job(
      {"env", "MPIRUN=" CAROPE_MPIRUN, "unshare", "--user", "--map-root-user", "--net", "sh",
       CAROPE_SOURCE_DIR "/tests/support/cut_link.sh", GetParam(), own_path(), folder.path()},
      folder / "output");
  const int status = job.wait_for(kStart);
  const std::string output = job.output();
  if (status == 127 || output.starts_with("unshare") ||
      output.find("cannot make a link") != std::string::npos) {
    GTEST_SKIP() << "this machine lets nobody make networks: " << output;
  }
  EXPECT_THAT(output, AllOf(HasSubstr("both have met"), HasSubstr("returned"),
                            Not(HasSubstr("returned 0"))));
  const auto first = HasSubstr(rank_here(0) + ": " + rank_here(1) + " has been silent");
  const auto second = HasSubstr(rank_here(1) + ": " + rank_here(0) + " has been silent");
  if (by_mpi) {  // mpirun, which is on both sides, ends the one when the other has ended
    EXPECT_THAT(output, AnyOf(first, second));
  } else {
    EXPECT_THAT(output, AllOf(first, second));
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, CutLink, testing::Values("watch", "sum"));

/// mpirun's ranks, which are in the middle of operations.
class MpiFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!mpi::compiled()) {
      GTEST_SKIP() << "built without MPI";
    }
  }
  std::unique_ptr<Process> start(const std::string& what) {
    return std::make_unique<Process>(
        with(mpirun(), {"-np", "3", own_path(), "rank", what, folder_.path()}), folder_ / "output");
  }
  TemporaryFolder folder_;
};

TEST_F(MpiFaults, ARankThatIsKilledEndsTheJob) {
  const auto job = start("sum");
  const std::map<int, pid_t> ranks = wait_for_ranks(folder_, 3, *job);
  ASSERT_EQ(ranks.size(), 3U) << job->output();
  kill(ranks.at(1), SIGKILL);
  const int status = job->wait_for(kTimeout + kSlack);
  EXPECT_NE(status, 0);
  EXPECT_NE(status, -2);
  EXPECT_THAT(job->output(), HasSubstr(rank_here(1) + " ended early"));
}

TEST_F(MpiFaults, ARankThatIsStoppedEndsTheJob) {
  const auto job = start("sum");
  const std::map<int, pid_t> ranks = wait_for_ranks(folder_, 3, *job);
  ASSERT_EQ(ranks.size(), 3U) << job->output();
  kill(ranks.at(2), SIGSTOP);
  EXPECT_EQ(job->wait_for(kTimeout + kSlack), 1);
  EXPECT_THAT(job->output(), HasSubstr(rank_here(2) + " has been silent for 2 s"));
  const auto end = Clock::now() + kSlack;  // mpirun ends it
  while (kill(ranks.at(2), 0) == 0 && Clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_NE(kill(ranks.at(2), 0), 0) << "the stopped rank still exists";
}

TEST_F(MpiFaults, ARankThatFailsSaysWhyBeforeOthersMissIt) {
  // All write to one file, in order: mpirun passes on what it reads of the one or the other first.
  Process job(
      with(mpirun(), {"-np", "3", "sh", "-c", "exec \"$0\" rank fail \"$1\" 2>> \"$1/said\"",
                      own_path(), folder_.path()}),
      folder_ / "output");
  EXPECT_EQ(job.wait_for(kStart), 1);
  const std::string output = read_file(folder_ / "said");
  const std::size_t why = output.find("carope: " + rank_here(1) + ": the disk is full");
  EXPECT_NE(why, std::string::npos) << output;
  EXPECT_LT(why, output.find(rank_here(1) + " ended early")) << output;
}

/// A training by several ranks, long enough to be disturbed.
class RanksTraining : public MpiFaults {
 protected:
  RanksTraining() { write_training_data(folder_ / "data"); }

  std::string command(const std::string& name) const {
    return " train --device cpu --threads 1 --exact-sums --resume auto --timeout 2 " +
           small_training(folder_ / "data") +
           " --train.micro_batch 2 --train.checkpoint_every 5 --out '" + (folder_ / name).string() +
           "'";
  }

  /// Returns its ranks when the first checkpoint is there; fewer where they do not come.
  std::map<int, pid_t> start_training(const std::string& name, int count) {
    // Every rank leaves its number where wait_for_ranks looks. What OpenMPI keeps until the end is
    // no leak of the program.
    job_ = std::make_unique<Process>(
        with(mpirun(),
             {"-np", std::to_string(count), "sh", "-c",
              "echo $$ > '" + folder_.path().string() + "/rank-'$OMPI_COMM_WORLD_RANK; " +
                  "export ASAN_OPTIONS=detect_leaks=0; exec " CAROPE_PROGRAM + command(name)}),
        folder_ / "output");
    const std::map<int, pid_t> ranks = wait_for_ranks(folder_, count, *job_);
    const auto end = Clock::now() + kStart;
    while (list_checkpoints(folder_ / name).empty() && job_->runs() && Clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return ranks;
  }

  std::unique_ptr<Process> job_;
};

TEST_F(RanksTraining, SavesAndReturns130WhenInterruptedAndOneRankSaysSo) {
  const std::map<int, pid_t> ranks = start_training("run", 2);
  ASSERT_EQ(ranks.size(), 2U) << job_->output();
  for (const auto& [rank, pid] : ranks) {
    kill(pid, SIGTERM);
  }
  EXPECT_EQ(job_->wait_for(kTimeout + kSlack), 130) << job_->output();
  const std::string output = job_->output();
  const std::size_t said = output.find("stopping after this step");
  EXPECT_NE(said, std::string::npos) << output;
  EXPECT_EQ(output.find("stopping after this step", said + 1), std::string::npos) << output;
  EXPECT_THAT(output, HasSubstr("interrupted; go on with: carope train --resume"));
  const std::int64_t saved = checkpoint_state(find_checkpoint(folder_ / "run")).step;
  EXPECT_THAT(output, HasSubstr(fmt::format("step {}/100 ", saved)));
  EXPECT_THAT(output, Not(HasSubstr(fmt::format("step {}/100 ", saved + 1))));
}

TEST_F(RanksTraining, SavesAndReturns130WhenOneRankIsInterrupted) {
  const std::map<int, pid_t> ranks = start_training("run", 2);
  ASSERT_EQ(ranks.size(), 2U) << job_->output();
  kill(ranks.at(1), SIGTERM);
  EXPECT_EQ(job_->wait_for(kTimeout + kSlack), 130) << job_->output();
  EXPECT_THAT(job_->output(), HasSubstr("interrupted; go on with: carope train --resume"));
}

/// A training that loses its second rank by a signal, and how many ranks go on with it.
struct Loss {
  int signal;
  std::string said;
  int ranks;
  int ranks_after;

  std::string name() const {
    return fmt::format("{}_of_{}_then_{}", signal == SIGKILL ? "killed" : "stopped", ranks,
                       ranks_after);
  }
};

void PrintTo(const Loss& loss, std::ostream* out) { *out << loss.name(); }

class LostTraining : public RanksTraining, public testing::WithParamInterface<Loss> {
 protected:
  std::string end_of(const std::string& name) const {
    const std::filesystem::path checkpoint = find_checkpoint(folder_ / name);
    EXPECT_EQ(checkpoint.filename(), "step-00000100");
    return read_file(checkpoint / "model.safetensors") +
           read_file(checkpoint / "optimizer.safetensors");
  }
};

TEST_P(LostTraining, GoesOnFromItsLastCheckpointWithAnotherNumberOfRanks) {
  const Loss& loss = GetParam();
  const std::map<int, pid_t> ranks = start_training("lost", loss.ranks);
  ASSERT_EQ(static_cast<int>(ranks.size()), loss.ranks) << job_->output();
  kill(ranks.at(1), loss.signal);
  const int status = job_->wait_for(kTimeout + kSlack);
  EXPECT_NE(status, 0);
  EXPECT_NE(status, -2);
  EXPECT_THAT(job_->output(), HasSubstr(rank_here(1) + loss.said));
  const std::int64_t saved = checkpoint_state(find_checkpoint(folder_ / "lost")).step;
  ASSERT_LT(saved, 100) << "it was not lost";

  const Ended after =
      run(command("lost"),
          fmt::format("ASAN_OPTIONS=detect_leaks=0 " CAROPE_MPIRUN " -np {}", loss.ranks_after));
  ASSERT_EQ(after.status, 0) << after.output;
  EXPECT_THAT(after.output, AllOf(HasSubstr(fmt::format("step {}/100 ", saved + 1)),
                                  Not(HasSubstr(fmt::format("step {}/100 ", saved)))));
  const Ended whole = run(command("whole"));
  ASSERT_EQ(whole.status, 0) << whole.output;
  EXPECT_TRUE(end_of("lost") == end_of("whole"))
      << "it went on to another end than a training that lost nobody";
}

INSTANTIATE_TEST_SUITE_P(Faults, LostTraining,
                         testing::Values(Loss{SIGKILL, " ended early", 2, 4},
                                         Loss{SIGSTOP, " has been silent for 2 s", 4, 2}),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace carope::test

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "rank") {
    return carope::test::be_a_rank(argv[2], argv[3]);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
