package flags

import (
	"time"

	"github.com/sluice-serve/sluice/gateway/repository/agent"
)

// remote are the flags of repository agents and of repositories in clouds.
func (s *Serve) remote() []flag {
	r := &s.Config.Repository
	return []flag{
		{name: "repoagent-directory", arg: "string", def: agent.DefaultDirectory, help: "Folder of repository agents, each an executable " +
			"<name>/agent (docs/0007-agents-and-cloud.md); 'checksum' is built in. Shared libraries of the original are not loaded.",
			set: stringInto(&r.Agents.Directory)},
		{name: "repoagent-timeout-ms", arg: "integer", def: "300000", help: "Milliseconds that an agent has for one event.",
			set: durationInto(&r.Agents.Timeout, time.Millisecond)},
		{name: "cloud-cache-directory", arg: "string", help: "Folder for copies of models from s3://, gs:// and as://, which stay for the next start; " +
			"$XDG_CACHE_HOME/sluice/cloud or ~/.cache/sluice/cloud if not given. TRITON_AWS_MOUNT_DIRECTORY, TRITON_GCS_MOUNT_DIRECTORY and " +
			"TRITON_AZURE_MOUNT_DIRECTORY come before it.", set: stringInto(&r.Cloud.Directory)},
		{name: "cloud-cache-byte-size", arg: "integer", def: "0", help: "Bytes that the copies may have; 0: no bound.",
			set: intInto(&r.Cloud.MaxBytes, 0, 1<<60)},
	}
}
