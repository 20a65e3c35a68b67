// How to reach an object store, taken from where the AWS tools take it. No secret is ever part of
// an error message. Any thread; reads the environment and small files, and may run a program or ask
// a service.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Secrets. Never log, print or store one.
struct S3Credentials {
  std::string access_key_id, secret_access_key;
  std::string session_token;  // "": none
  int64_t expires_s = 0;      // since 1970; 0: never, or it is not known
};

struct S3Settings {
  std::string endpoint;  // "https://HOST[:PORT]", without "/" at its end; "": AWS
  std::string region = "us-east-1";
  std::string ca_bundle;  // a file of certificates; "": those of the system
  S3Credentials credentials;
};

/// Reads a variable of the environment; "" if it is not set.
using Environment = std::function<std::string(const std::string& name)>;
Environment process_environment();

/// In the order of the AWS tools:
///   credentials  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; or else what STS
///                gives for AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN; or else the profile
///                AWS_PROFILE (default: "default") of AWS_SHARED_CREDENTIALS_FILE
///                (~/.aws/credentials), or of AWS_CONFIG_FILE (~/.aws/config): its keys, or what
///                its credential_process prints within 30 s; or else those of the container; or else
///                those of the instance (given_credentials.hpp)
///   region       AWS_REGION, AWS_DEFAULT_REGION, or else that of the profile
///   endpoint     AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or else endpoint_url of the profile
///   certificates AWS_CA_BUNDLE, or else ca_bundle of the profile
/// bad_config: there are no credentials, half of them, or a value is malformed; says where. io: a
/// service that gives credentials does not answer, or failed.
Result<S3Settings> s3_settings(const Environment& environment = process_environment());

}  // namespace simplescale
