#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>

#include "core/version.h"
#include "dist/communicator.h"
#include "dist/mpi.h"
#include "dist/nccl.h"
#include "dist/rendezvous.h"
#include "support/errors.h"

// What launchers say, and how the ranks that they start meet.
namespace carope::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::string rank_here(int rank) { return fmt::format("rank {} on {}", rank, host_name()); }

/// A launcher's variables, and no other's, until the end of the test.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    clear();
    for (const auto& [name, value] : values) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Variables() { clear(); }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void clear() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
          "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
          "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
      unsetenv(name);
    }
  }
};

struct LaunchCase {
  std::map<std::string, std::string> variables;
  Launch launch;
};

const std::map<std::string, std::string> kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},
                                                    {"OMPI_COMM_WORLD_SIZE", "4"},
                                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const std::map<std::string, std::string> kSrun = {
    {"SLURM_PROCID", "5"},     {"SLURM_STEP_NUM_TASKS", "8"},
    {"SLURM_LOCALID", "1"},    {"SLURM_STEP_NODELIST", "gpu[007-008],login"},
    {"SLURM_JOB_ID", "12345"}, {"SLURM_STEP_ID", "2"}};
const std::map<std::string, std::string> kTorchrun = {{"RANK", "3"},
                                                      {"WORLD_SIZE", "4"},
                                                      {"LOCAL_RANK", "1"},
                                                      {"MASTER_ADDR", "first"},
                                                      {"MASTER_PORT", "29500"}};

std::map<std::string, std::string> both(std::map<std::string, std::string> first,
                                        const std::map<std::string, std::string>& second) {
  first.insert(second.begin(), second.end());
  return first;
}

TEST(Launch, IsWhatTheLauncherSays) {
  const LaunchCase cases[] = {
      {{}, {}},
      {{{"RANK", "0"}}, {}},
      {kMpirun, {3, 4, 1, Launcher::kOpenMpi, "", 0, "-"}},
      {kSrun, {5, 8, 1, Launcher::kSlurm, "gpu007", 22347, "12345.2"}},
      {kTorchrun, {3, 4, 1, Launcher::kTorchrun, "first", 29500, "-"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {0, 1, 0, Launcher::kTorchrun, "", 0, "-"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, {1, 2, 1, Launcher::kTorchrun, "", 0, "-"}},
      // torchrun itself has the port.
      {both(kTorchrun, {{"TORCHELASTIC_RUN_ID", "a b"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
       {3, 4, 1, Launcher::kTorchrun, "first", 29501, "a_b"}},
      // Both say the same: MPI can be used, and the address is known.
      {both(kMpirun, kTorchrun), {3, 4, 1, Launcher::kOpenMpi, "first", 29500, "-"}},
      // torchrun on every machine, started by srun.
      {both(kTorchrun, kSrun), {3, 4, 1, Launcher::kTorchrun, "first", 29500, "-"}},
      // mpirun's daemons are started by srun.
      {both(kMpirun, kSrun), {3, 4, 1, Launcher::kOpenMpi, "", 0, "-"}},
      {both(kSrun, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "1"}}),
       {5, 8, 1, Launcher::kSlurm, "other", 1, "12345.2"}},
      // A shell of srun --pty has a step of a very large number.
      {{{"SLURM_PROCID", "0"},
        {"SLURM_STEP_NUM_TASKS", "1"},
        {"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "4294967290"}},
       {0, 1, 0, Launcher::kSlurm, "", 27297, "7.4294967290"}},
  };
  for (const LaunchCase& each : cases) {
    SCOPED_TRACE(testing::PrintToString(each.variables));
    const Variables variables(each.variables);
    const Launch launch = launch_from_environment();
    EXPECT_EQ(launch.rank, each.launch.rank);
    EXPECT_EQ(launch.world_size, each.launch.world_size);
    EXPECT_EQ(launch.local_rank, each.launch.local_rank);
    EXPECT_EQ(launch.launcher, each.launch.launcher);
    EXPECT_EQ(launch.address, each.launch.address);
    EXPECT_EQ(launch.port, each.launch.port);
    EXPECT_EQ(launch.job, each.launch.job);
    EXPECT_EQ(speaker(), launch.world_size == 1 ? "" : rank_here(launch.rank) + ": ");
  }
}

TEST(Launch, RefusesWhatMakesNoSense) {
  const std::pair<std::map<std::string, std::string>, const char*> cases[] = {
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK = 2 and WORLD_SIZE = 2"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "do not fit together"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK = '-1'"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2x"}}, "WORLD_SIZE = '2x'"},
      {{{"WORLD_SIZE", "2"}}, "RANK is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}, "MASTER_PORT = '70000'"},
      {both({{"RANK", "2"}}, both(kMpirun, kTorchrun)), "rank 3 of 4 (OMPI_COMM_WORLD_RANK)"},
  };
  for (const auto& [values, said] : cases) {
    const Variables variables(values);
    EXPECT_THAT(message_of<ConfigError>([] { launch_from_environment(); }), HasSubstr(said));
    EXPECT_EQ(speaker(), "");
  }
}

TEST(Launch, FindsTheFirstOfSlurmsHosts) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("n[007-009,12],login"), "n007");
  EXPECT_EQ(first_host("rack[1,3]-n[02-04].local,x"), "rack1-n02.local");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("n["), "n");
}

TEST(Launch, DealsOutTheGpus) {
  const Launch launch{.rank = 5, .world_size = 8, .local_rank = 1};
  EXPECT_EQ(gpu_of_rank(launch, 4), 1);
  EXPECT_EQ(gpu_of_rank(launch, 1), 0);
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { gpu_of_rank({.rank = 5, .world_size = 8, .local_rank = 3}, 2); }),
              AllOf(HasSubstr("rank 5 is number 3"), HasSubstr("has 2 GPUs")));
}

TEST(Communicator, RefusesRanksThatItCannotJoin) {
  const Launch by_hand{.rank = 0, .world_size = 2, .launcher = Launcher::kTorchrun};
  EXPECT_THAT(message_of<ConfigError>([&] { make_communicator(by_hand, {}, seconds(2)); }),
              mpi::compiled() ? HasSubstr("mpirun -np 2") : HasSubstr("built without MPI"));
  EXPECT_THAT(message_of<ConfigError>([&] { make_communicator(by_hand, {}, seconds(0)); }),
              HasSubstr("a timeout of 0 s"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                make_communicator(by_hand, {DeviceKind::kCuda, 0}, seconds(2));
              }),
              nccl::compiled() ? HasSubstr("MASTER_ADDR") : HasSubstr("built without NCCL"));
  EXPECT_EQ(make_communicator({}, {}, seconds(2))->size(), 1);
}

/// What rank 0 of two says at the end when something comes to its door.
template <class Guest>
std::string door(const Guest& guest, milliseconds patience = seconds(20)) {
  const Listener listener(0);
  auto host = std::async(std::launch::async, [&] {
    return message_of<ConfigError>([&] {
      let_ranks_in(listener, {.rank = 0, .world_size = 2, .job = "j"}, "gift", patience);
    });
  });
  guest(listener.port());
  return host.get();
}

Connection knock(int port, const std::string& bytes) {
  Connection connection = std::move(*connect_to("127.0.0.1", port, seconds(5)).connection);
  EXPECT_EQ(::send(connection.socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return connection;
}

std::string hello(const std::string& version, int size, int rank, const std::string& job,
                  const std::string& device = "CPU") {
  return fmt::format("carope {} {} {} far {} {}\n", version, size, rank, job, device);
}

const Launch kSecond{.rank = 1, .world_size = 2, .job = "j"};

TEST(Rendezvous, IsNotDisturbedByStrangers) {
  const std::string said = door([](int port) {
    const std::string now(version());
    std::vector<Connection> strangers;
    strangers.push_back(knock(port, ""));
    strangers.push_back(knock(port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    strangers.push_back(knock(port, std::string(100000, 'x')));
    strangers.push_back(knock(port, std::string("\0\xff\n\n", 4)));
    strangers.push_back(knock(port, "carope\n"));
    strangers.push_back(knock(port, hello(now, 2, 1, "j").substr(0, 10)));
    strangers.push_back(knock(port, "carope " + now + " 2 -1 far j CPU\n"));
    strangers.push_back(knock(port, "carope " + now + " 99999999999 1 far j CPU\n"));
    strangers.push_back(knock(port, hello(now, 2, 1, "another-job")));
    knock(port, "gone");
    for (int i = 0; i < 200; ++i) {
      strangers.push_back(knock(port, "?"));
    }
    const FirstRank first = join_first_rank({"127.0.0.1"}, port, kSecond, seconds(20));
    EXPECT_EQ(first.peer.host, host_name());
    EXPECT_EQ(first.gift, "gift");
  });
  EXPECT_EQ(said, "(nothing thrown)");
}

TEST(Rendezvous, RefusesRanksThatDoNotFit) {
  const std::string now(version());
  const std::pair<std::string, const char*> cases[] = {
      {hello("0.0.0", 2, 1, "j"), "rank 1 on far runs version 0.0.0 of carope"},
      {hello(now, 3, 1, "j"), "rank 1 on far was told of 3 ranks"},
      {hello(now, 2, 7, "j"), "rank 7 on far was told of 2 ranks"},
      {hello(now, 2, 0, "j"), "rank 0 on far was told of 2 ranks"},
      {hello(now, 2, 1, "j", "GPU"), "rank 1 on far computes on its GPU, but rank 0"}};
  for (const auto& [line, problem] : cases) {
    std::string answer;
    const std::string said = door([&, line = line](int port) {
      Connection connection = knock(port, line);
      while (connection.receive()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      answer = connection.line().value_or("");
    });
    EXPECT_THAT(said, HasSubstr(problem));
    EXPECT_EQ(answer, "refused " + said);
  }
}

TEST(Rendezvous, RefusesTwoOfOneRankAndTellsAll) {
  const Launch launch{.rank = 0, .world_size = 3, .job = "j"};
  const Listener listener(0);
  const auto join = [&] {
    return message_of<ConfigError>([&] {
      join_first_rank({"127.0.0.1"}, listener.port(), {.rank = 1, .world_size = 3, .job = "j"},
                      seconds(20));
    });
  };
  auto one = std::async(std::launch::async, join);
  auto other = std::async(std::launch::async, join);
  EXPECT_THAT(message_of<ConfigError>([&] { let_ranks_in(listener, launch, "-", seconds(20)); }),
              HasSubstr("two processes say that they are rank 1"));
  EXPECT_THAT(one.get(), HasSubstr("two processes say that they are rank 1"));
  EXPECT_THAT(other.get(), HasSubstr("two processes say that they are rank 1"));
}

TEST(Rendezvous, NamesWhoIsMissingAndWhoLeft) {
  EXPECT_THAT(door([](int) {}, milliseconds(200)),
              AllOf(HasSubstr("1 of 2 ranks came"), HasSubstr("missing: 1;")));
  const Listener listener(0);
  knock(listener.port(), hello(std::string(version()), 3, 2, "j"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                let_ranks_in(listener, {.rank = 0, .world_size = 3, .job = "j"}, "-", seconds(20));
              }),
              HasSubstr("rank 2 on far left before all ranks were there"));
}

TEST(Rendezvous, SaysWhyRankZeroCannotBeMet) {
  const auto join = [](const std::string& address, int port) {
    return message_of<ConfigError>(
        [&] { join_first_rank({address}, port, kSecond, milliseconds(300)); });
  };
  const int nobody = [] { return Listener(0).port(); }();
  EXPECT_THAT(join("127.0.0.1", nobody),
              AllOf(HasSubstr("Connection refused"), HasSubstr("MASTER_ADDR")));
  EXPECT_THAT(join("no.such.host.invalid", 1),
              AllOf(HasSubstr("'no.such.host.invalid' cannot be resolved"), HasSubstr("port 1")));
  const Listener silent(0);
  EXPECT_THAT(join("127.0.0.1", silent.port()), HasSubstr("does not answer"));
}

TEST(Rendezvous, RefusesAPortThatIsTaken) {
  const Listener taken(0);
  EXPECT_THAT(message_of<ConfigError>([&] { Listener again(taken.port()); }),
              AllOf(HasSubstr(std::to_string(taken.port())), HasSubstr("in use"),
                    HasSubstr("MASTER_PORT")));
}

}  // namespace
}  // namespace carope::test
