// Temporary credentials that a service gives to this process: STS for a web identity (EKS and other
// clusters), the agent of a container (ECS, EKS), the metadata service of an EC2 instance.
// Variables and defaults are those of the AWS tools. No secret is ever part of an error message.
// Any thread; blocks for some seconds at most. Used in runtime/object_store/ only.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/object_store/settings.hpp"

namespace simplescale {

/// A role and a file with the token that allows to take it.
struct WebIdentity {
  std::string token_file, role_arn;
  std::string session_name;  // "": one of ours
  std::string endpoint;      // of STS; "": AWS's of the region
};

/// What STS gives for the token. bad_config: the token or the role is refused, or the file cannot
/// be read; io: STS cannot be reached, or failed.
Result<S3Credentials> web_identity_credentials(const WebIdentity& identity,
                                               const S3Settings& settings);

/// True if the environment names a service of the container's credentials.
bool has_container_credentials(const Environment& environment);
/// What the service of AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI gives. bad_config: the
/// URL is neither https nor one of the host's own addresses, or the service refuses; io as above.
Result<S3Credentials> container_credentials(const Environment& environment,
                                            const S3Settings& settings);

/// What the instance's metadata service gives, version 2 (IMDSv2). endpoint: "": by the
/// environment. not_found: this is no instance, it has no role, or AWS_EC2_METADATA_DISABLED is
/// true; io: the service failed.
Result<S3Credentials> instance_credentials(const Environment& environment,
                                           const std::string& endpoint);

/// Reads credentials from a JSON object, in which the member `token` is the session token.
/// bad_config: the object lacks a member. Pure.
Result<S3Credentials> credentials_of_json(const std::string& text, const char* token);

/// Seconds since 1970 of a time such as 2026-11-25T06:00:00Z; 0: it is none. Pure.
int64_t unix_time_of(const std::string& text);

}  // namespace simplescale
