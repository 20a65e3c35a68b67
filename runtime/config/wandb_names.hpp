// Names that W&B takes. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

namespace simplescale {

/// The tags in metrics.wandb_tags, without blanks around them and without empty ones.
std::vector<std::string> wandb_tags(const std::string& text);

/// What is wrong with metrics.wandb_project, for which `wandb sync` would refuse the whole run; "".
std::string wrong_wandb_project(const std::string& project);

/// The same of metrics.wandb_tags.
std::string wrong_wandb_tags(const std::string& text);

}  // namespace simplescale
