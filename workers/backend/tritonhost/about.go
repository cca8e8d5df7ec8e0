package tritonhost

import (
	"maps"
	"slices"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/configjson"
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

// backendConfig is the JSON that a backend reads as its config: every option, as text, sorted by name, and behind them the
// default of one that every backend is told. Source: what Triton 2.51 hands a backend.
func backendConfig(options map[string]string) []byte {
	b := []byte(`{"cmdline":{`)
	add := func(name, value string) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = configjson.AppendText(append(configjson.AppendText(b, name), ':'), value)
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !ownOptions[name] {
			add(name, options[name])
		}
	}
	if _, ok := options[maxBatchSize]; !ok {
		add(maxBatchSize, "4")
	}
	return append(b, "}}"...)
}

const maxBatchSize = "default-max-batch-size"
