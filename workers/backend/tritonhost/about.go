package tritonhost

import (
	"encoding/json"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// openRequests is how many requests of an instance may be open when it takes its next batch.
const openRequests = 1024

// about is what the backend says of itself, whatever library there is.
func about() backend.Info {
	return backend.Info{
		GPU:            true,
		OpenRequests:   openRequests,
		WholeBatches:   true,
		Ragged:         true,
		RequestContext: true,
		Simultaneous:   true,
		Patches:        true,
		OwnProcess:     true,
		Runtimes:       []*worker.Runtime{{File: "libtriton_<name>.so"}},
	}
}

// ownOptions are options of this package, which backends don't see.
var ownOptions = map[string]bool{"stall-seconds": true, "log-verbose": true}

// backendConfig is the JSON that a backend reads as its config: every option, as text.
func backendConfig(options map[string]string) ([]byte, error) {
	line := map[string]string{}
	for name, value := range options {
		if !ownOptions[name] {
			line[name] = value
		}
	}
	return json.Marshal(map[string]any{"cmdline": line}) // sorted by name
}
