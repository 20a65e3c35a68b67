// The environment of Slurm tasks, batch scripts, and the decision to requeue a job.
#include "app/slurm/slurm.hpp"

#include <doctest/doctest.h>

#include <map>

#include "tests/must.hpp"

using namespace simplescale;
using namespace simplescale::slurm;

namespace {

Environment environment(const std::map<std::string, std::string>& values) {
  return [values](const char* name) {
    auto found = values.find(name);
    return found == values.end() ? "" : found->second;
  };
}

const std::map<std::string, std::string> third_task = {
    {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "3"},        {"SLURM_PROCID", "2"},
    {"SLURM_NTASKS", "9"},  {"SLURM_NODEID", "1"},         {"SLURM_STEP_TASKS_PER_NODE", "1,2(x2)"},
    {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NUM_TASKS", "5"}, {"SLURMD_NODENAME", "host-4"}};

Config batch_config() {
  auto loaded = must(load_config_text("[run]\nname = \"r\"\nfolder = \"/runs/r\"\n", "r.toml"));
  return loaded->config;
}

JobEnd ended(int code, uint64_t step) {
  return {.job = "7",
          .code = code,
          .running = true,
          .step = step,
          .requeues_max = 100,
          .fruitless_max = 3};
}

}  // namespace

TEST_SUITE("slurm") {
  TEST_CASE("slurm: a task reads its rank, its host and the instance from the environment") {
    const auto task = task_of(environment(third_task));
    REQUIRE(task);
    CHECK(task->task == 2);
    CHECK(task->tasks == 5);
    CHECK(task->local_task == 1);
    CHECK(task->tasks_on_host == 2);
    CHECK(task->host == "host-4");
    CHECK(task->instance == "77.3.0");
    CHECK(task->other_hosts);
    auto again = third_task;
    again["SLURM_RESTART_COUNT"] = "4";
    CHECK(task_of(environment(again))->instance == "77.3.4");
  }

  TEST_CASE("slurm: outside srun, in salloc's shell and with invalid numbers there is no task") {
    CHECK_FALSE(task_of(environment({})));
    for (const auto& [name, value] : {std::pair{"SLURM_STEP_ID", ""},
                                      {"SLURM_STEP_ID", "4294967290"},
                                      {"SLURM_PROCID", "5"},
                                      {"SLURM_PROCID", "-1"},
                                      {"SLURM_JOB_ID", "7/../x"},
                                      {"SLURM_STEP_NUM_TASKS", "0"}}) {
      auto values = third_task;
      values[name] = value;
      CHECK_FALSE(task_of(environment(values)));
    }
  }

  TEST_CASE("slurm: a command without srun tells its processes their task by a variable") {
    Task task{.task = 2, .tasks = 3, .local_task = 1, .tasks_on_host = 2, .own_gpus = true};
    task.other_hosts = true;
    task.host = "host-4";
    task.instance = "0123456789abcdef";
    auto variables = third_task;  // --nnodes inside an allocation of Slurm
    variables[kTaskVariable] = text_of(task);
    const auto read = task_of(environment(variables));
    REQUIRE(read);
    CHECK(text_of(*read) == "2 3 1 2 1 0 1 0123456789abcdef host-4");
    CHECK(text_of(*read) == text_of(task));
    CHECK_FALSE(task_of(environment({{kTaskVariable, "2 3 1"}})));
    task.task = 0;
    CHECK(batch_log(task).empty());  // it has no batch script
  }

  TEST_CASE("slurm: tasks per host are parsed from Slurm's short form") {
    CHECK(tasks_on_node("2(x3),1", 0) == 2);
    CHECK(tasks_on_node("2(x3),1", 2) == 2);
    CHECK(tasks_on_node("2(x3),1", 3) == 1);
    CHECK(tasks_on_node("8", 0) == 8);
    for (const char* wrong : {"", "x", "(x2)", ",,", "-4"}) CHECK(tasks_on_node(wrong, 0) >= 1);
  }

  TEST_CASE("slurm: a task has its own GPUs by each of Slurm's ways to bind them, and only then") {
    const auto own = [](const std::string& name, const std::string& value) {
      auto variables = third_task;
      variables[name] = value;
      return task_of(environment(variables))->own_gpus;
    };
    CHECK(own("SLURM_GPUS_PER_TASK", "1"));
    CHECK(own("SLURM_TRES_PER_TASK", "cpu=4,gres/gpu=1"));
    CHECK_FALSE(own("SLURM_TRES_PER_TASK", "cpu=4"));
    for (const char* bind : {"single:1", "verbose,single:1", "per_task:2", "v,per_task:1"}) {
      CAPTURE(bind);
      CHECK(own("SLURM_GPU_BIND", bind));
    }
    for (const char* bind : {"", "none", "closest", "verbose,closest", "single:2", "single:10",
                             "map_gpu:0,0", "mask_gpu:0xf"}) {
      CAPTURE(bind);
      CHECK_FALSE(own("SLURM_GPU_BIND", bind));
    }
  }

  TEST_CASE("slurm: only the first task reads the batch script's output") {
    auto task = task_of(environment(third_task));
    CHECK(batch_log(task).empty());
    task->task = 0;
    CHECK(batch_log(task) == "slurm-77.out");
    CHECK(batch_log(std::nullopt).empty());
  }

  TEST_CASE("slurm: the first surviving node acts for a lost batch script") {
    const std::vector<LastKnownNode> whole = {
        {"n0", "a", false}, {"n1", "a", false}, {"n2", "b", false}};
    for (const char* name : {"n0", "n1", "n2"}) CHECK_FALSE(is_first_survivor(whole, name));
    CHECK_FALSE(script_may_be_lost(whole, "a"));
    std::vector<LastKnownNode> half = whole;
    half[0].lost = true;
    CHECK(is_first_survivor(half, "n1"));
    CHECK_FALSE(is_first_survivor(half, "n2"));
    CHECK_FALSE(script_may_be_lost(half, "a"));  // another node on that host survives
    half[1].lost = true;
    CHECK(is_first_survivor(half, "n2"));
    CHECK(script_may_be_lost(half, "a"));
    half[0].host = "";  // unknown to a new supervisor
    half[1].host = "";
    CHECK(script_may_be_lost(half, "a"));
    half[2].lost = true;
    CHECK_FALSE(is_first_survivor(half, "n2"));
    CHECK_FALSE(is_first_survivor({}, "n0"));
  }

  TEST_CASE("slurm: only plain node names are passed to Slurm's commands") {
    for (const char* good : {"n1", "gpu-07.cluster.example", "A_1"}) CHECK(valid_node_name(good));
    for (const char* bad : {"", "-n1", "n 1", "n1;reboot", "$(reboot)", "n1\n", "n[1-4]", "a=b"})
      CHECK_FALSE(valid_node_name(bad));
    CHECK_FALSE(valid_node_name(std::string(65, 'a')));
    CHECK(sanitized_reason("disk: \"5 MB/s\"\n`x`") == "disk:  5 MB/s  `x`");
  }

  TEST_CASE("slurm: the batch script has the options that recovery needs") {
    Config config = batch_config();
    config.cluster.trainers_per_node = 8;
    config.cluster.device = DeviceKind::cuda;
    config.slurm.partition = "gpu";
    config.slurm.time_minutes = 60;
    const auto script = must(batch_script(config, "/bin/simplescale", 5));
    for (const char* option :
         {"job-name=r", "nodes=5", "ntasks=5", "ntasks-per-node=1", "gpus-per-node=8", "exclusive",
          "no-kill", "requeue", "signal=USR1@120", "open-mode=append", "time=60",
          "output=/runs/r/logs/slurm-%j.out", "partition=gpu"})
      CHECK(script->find(std::string("#SBATCH --") + option + "\n") != std::string::npos);
    CHECK(script->find("srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none ") !=
          std::string::npos);
    config.slurm.tasks_per_node = 2;
    config.slurm.cpus_per_task = 12;
    const auto bound = batch_script(config, "/bin/simplescale", 5);
    for (const char* option : {"nodes=3", "ntasks=5", "gpus-per-node=16", "cpus-per-task=12"})
      CHECK(bound->find(std::string("#SBATCH --") + option + "\n") != std::string::npos);
    CHECK(bound->find("exclusive") == std::string::npos);
    config.slurm.tasks_per_node = 0;  // hosts of different sizes
    const auto packed = must(batch_script(config, "/bin/simplescale", 5));
    for (const char* option : {"ntasks=5", "gpus-per-task=8", "cpus-per-task=12"})
      CHECK(packed->find(std::string("#SBATCH --") + option + "\n") != std::string::npos);
    for (const char* option : {"nodes=", "ntasks-per-node", "gpus-per-node", "exclusive"})
      CHECK(packed->find(std::string("#SBATCH --") + option) == std::string::npos);
    config.slurm.cpus_per_task = 0;
    config.cluster.device = DeviceKind::cpu;
    CHECK(batch_script(config, "/bin/simplescale", 5).status().code() == Code::bad_config);
  }

  TEST_CASE("slurm: values that could be read as more than one value are refused") {
    for (const char* wrong : {"a b", "$(reboot)", "a;b", "a'b", "a\nb", "`x`", "a\\b", "a\"b"}) {
      Config config = batch_config();
      config.slurm.partition = wrong;
      CHECK(batch_script(config, "/bin/simplescale", 1).status().code() == Code::bad_config);
      config = batch_config();
      config.run.folder = std::string("/runs/") + wrong;
      CHECK(batch_script(config, "/bin/simplescale", 1).status().code() == Code::bad_config);
    }
    for (const char* wrong : {"reboot", "-N", "--", "--x=$(y)"}) {
      Config config = batch_config();
      config.slurm.options = wrong;
      CHECK(batch_script(config, "/bin/simplescale", 1).status().code() == Code::bad_config);
    }
  }

  TEST_CASE("slurm: exit code 75 requeues the job, other codes end it") {
    for (int code : {0, 3, 65, 70, 78}) {
      const RequeueDecision decision = decide_requeue(ended(code, 10), {});
      CHECK_FALSE(decision.requeue);
      CHECK(decision.code == code);
    }
    const RequeueDecision decision = decide_requeue(ended(75, 10), {});
    CHECK(decision.requeue);
    CHECK(decision.next.count == 1);
    CHECK(decision.next.step == 10);
  }

  TEST_CASE("slurm: a job that was cancelled is not requeued") {
    JobEnd end = ended(75, 10);
    end.running = false;
    CHECK_FALSE(decide_requeue(end, {}).requeue);
    CHECK(decide_requeue(end, {}).code == 75);
  }

  TEST_CASE("slurm: requeues are limited in number and without progress") {
    Requeues kept;
    for (uint64_t i = 0; i < 3; ++i) {  // the first requeue does not count as fruitless
      const RequeueDecision decision = decide_requeue(ended(75, 10), kept);
      CHECK(decision.requeue);
      kept = decision.next;
    }
    CHECK_FALSE(decide_requeue(ended(75, 10), kept).requeue);
    CHECK(decide_requeue(ended(75, 10), kept).code == 3);
    CHECK(decide_requeue(ended(75, 11), kept).requeue);  // a newer checkpoint
    JobEnd other = ended(75, 10);
    other.job = "8";
    CHECK(decide_requeue(other, kept).requeue);
    CHECK(decide_requeue(other, kept).next.count == 1);
    kept = {"7", 10, 100, 0};
    CHECK(decide_requeue(ended(75, 11), kept).code == 3);
  }

  TEST_CASE("slurm: a job array has the options of one of its runs") {
    Config config;
    config.run.name = "one";
    config.run.folder = "/sweep/000-seed-1";
    config.slurm.partition = "long";
    const auto one = must(batch_script(config, "/bin/simplescale", 2));
    const std::vector<std::string> runs = {"/sweep/000-seed-1", "/sweep/001-seed[2]"};
    const auto script = must(array_script(*one, "sweep", "/sweep", runs));
    for (const char* line :
         {"#SBATCH --job-name=sweep\n", "#SBATCH --array=0-1\n", "#SBATCH --partition=long\n",
          "#SBATCH --ntasks=2\n", "#SBATCH --no-kill\n", "#SBATCH --requeue\n",
          "#SBATCH --output=/sweep/logs/slurm-%A_%a.out\n",
          "runs=(\n'/sweep/000-seed-1'\n'/sweep/001-seed[2]'\n)\n",
          "run=${runs[$SLURM_ARRAY_TASK_ID]}\n",
          "exec >>\"$run/logs/slurm-$SLURM_JOB_ID.out\" 2>&1\n"})
      CHECK_MESSAGE(script->find(line) != std::string::npos, line);
    CHECK(script->find("srun") == std::string::npos);
    CHECK(script->find("job-name=one") == std::string::npos);
    CHECK(!array_script(*one, "sweep", "/sweep", {"/sweep/$(reboot)"}).ok());
  }

  TEST_CASE("slurm: host lists are expanded, and a task is mapped to its host") {
    using Names = std::vector<std::string>;
    CHECK(hosts_of("node1") == Names{"node1"});
    CHECK(hosts_of("n[08-10,3],gpu,x[1-2]y") ==
          Names{"n08", "n09", "n10", "n3", "gpu", "x1y", "x2y"});
    for (const char* odd : {"", "a,,b", "n[1-", "n[2-1]", "n[x]", "n[1][2]", "n[]1,$(x)", "a b",
                            "n[1-4000000000]", "n[1-99999],m[1-99999]", "]n["})
      CHECK_MESSAGE(hosts_of(odd).empty(), odd);
    CHECK(hosts_of("n[1-100000]").size() == 100000);
    const Names hosts = {"a", "b", "c"};
    CHECK(host_of_task(hosts, "2,1(x2)", 1) == "a");
    CHECK(host_of_task(hosts, "2,1(x2)", 2) == "b");
    CHECK(host_of_task(hosts, "2,1(x2)", 3) == "c");
    CHECK(host_of_task(hosts, "2,1(x2)", 4) == "");
    CHECK(host_of_task({}, "1(x3)", 0) == "");
  }

  TEST_CASE("slurm: an allocation is detected in its shell and script, not in a step") {
    auto in = [](const std::map<std::string, std::string>& values) {
      return allocation_of(environment(values));
    };
    CHECK(in({}) == 0);
    CHECK(in({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "4"}}) == 4);
    CHECK(in({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}, {"SLURM_STEP_ID", "4294967290"}}) == 2);
    CHECK(in({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}, {"SLURM_STEP_ID", "0"}}) == 0);
    CHECK(in({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "x"}}) == 0);
  }

  TEST_CASE("slurm: fields of a job are parsed, node lists are merged") {
    const std::string line = "JobId=7 JobState=RUNNING ExcNodeList=(null) Command=/x y JobState=NO";
    CHECK(field(line, "JobState") == "RUNNING");
    CHECK(field(line, "Job") == "");
    CHECK(merge_node_lists("(null)", {"n2", "n1", "n2"}) == "n1,n2");
    CHECK(merge_node_lists("n[3-4],n1", {"n1", "n2"}) == "n[3-4],n1,n2");
    CHECK(merge_node_lists("", {}).empty());
  }
}
