// The Prometheus metrics of a run.
#include "tools/http/prometheus.hpp"

#include <doctest/doctest.h>

using namespace simplescale;
using nlohmann::json;

TEST_SUITE("prometheus") {
  TEST_CASE("prometheus: samples of a metric are grouped, labels are escaped") {
    const json trainer = {{"name", "n0.0"}, {"state", "training"}, {"slowness", 1.25}};
    const json down = {{"name", "n1.0"}, {"state", "down"}, {"slowness", nullptr}};
    const json status = {{"run", "a \"b\"\\\n"},
                         {"state", "training"},
                         {"step", 7},
                         {"loss", nullptr},
                         {"nodes",
                          {{{"name", "n0"}, {"state", "up"}, {"trainers", {trainer}}},
                           {{"name", "n1"}, {"state", "lost"}, {"trainers", {down}}}}}};
    const std::string text = prometheus_text(status, {{"step_ms", 12.5}});
    const std::string run = "run=\"a \\\"b\\\"\\\\\\n\"";
    CHECK(text.find("# TYPE simplescale_step gauge\nsimplescale_step{" + run + "} 7\n") !=
          std::string::npos);
    CHECK(text.find("simplescale_step_milliseconds{" + run + "} 12.5\n") != std::string::npos);
    CHECK(text.find("simplescale_loss") == std::string::npos);
    CHECK(text.find("simplescale_nodes{" + run + ",state=\"lost\"} 1\nsimplescale_nodes{" + run +
                    ",state=\"up\"} 1\n") != std::string::npos);
    CHECK(text.find("simplescale_trainer_up{" + run +
                    ",node=\"n0\",trainer=\"n0.0\"} 1\nsimplescale_trainer_up{" + run +
                    ",node=\"n1\",trainer=\"n1.0\"} 0\n# HELP") != std::string::npos);
    CHECK(text.find("simplescale_trainer_slowness{" + run +
                    ",node=\"n0\",trainer=\"n0.0\"} 1.25\n") != std::string::npos);
  }

  TEST_CASE("prometheus: the validation loss of each source has the source's name") {
    const json status = {{"run", "r"}, {"val_losses", {{"web", 1.5}, {"code", nullptr}}}};
    const std::string text = prometheus_text(status, json());
    CHECK(text.find("simplescale_val_loss_of_source{run=\"r\",source=\"web\"} 1.5\n") !=
          std::string::npos);
    CHECK(text.find("source=\"code\"") == std::string::npos);
  }

  TEST_CASE("prometheus: the scores of each task have the task's name") {
    const json status = {{"run", "r"},
                         {"tasks",
                          {{"a", {{"acc", 0.5}, {"acc_norm", 0.75}}},
                           {"b\"", {{"acc", 0.25}, {"byte_perplexity", 1.5}}}}}};
    const std::string text = prometheus_text(status, json());
    CHECK(text.find("simplescale_task_accuracy{run=\"r\",task=\"a\"} 0.5\n"
                    "simplescale_task_accuracy{run=\"r\",task=\"b\\\"\"} 0.25\n") !=
          std::string::npos);
    CHECK(text.find("simplescale_task_byte_perplexity{run=\"r\",task=\"b\\\"\"} 1.5\n") !=
          std::string::npos);
    CHECK(text.find("word_perplexity") == std::string::npos);
  }

  TEST_CASE("prometheus: a document that is not a status gives no samples") {
    for (const json& odd : {json(), json(3), json::array({1, 2}), json{{"nodes", 3}, {"step", "x"}},
                            json{{"nodes", json::array({json(), json(4), json::object()})}}})
      CHECK(prometheus_text(odd, odd).find("simplescale_step{") == std::string::npos);
  }
}
