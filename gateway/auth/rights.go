package auth

import (
	"fmt"
	"strings"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
)

// Right is a set of rights, one bit each.
type Right uint16

// The rights. Those of one model are asked for with its name.
const (
	RightHealth       Right = 1 << iota
	RightMetadata           // server and model metadata, gRPC reflection
	RightInference          // of one model
	RightSharedMemory       // status, register, unregister
	RightModelConfig        // of one model
	RightIndex              // the repository index
	RightControl            // load, unload, purge of the cache
	RightStatistics         // of one model, or of all that the caller may read
	RightTrace              // trace settings, reading and changing
	RightLogging            // log settings, reading and changing
	RightMetrics            // the metrics' listener
	allRights         Right = 1<<iota - 1
)

// rightNames are the names that a policy says, groups among them.
var rightNames = []struct {
	name  string
	right Right
}{
	{"health", RightHealth}, {"metadata", RightMetadata}, {"inference", RightInference}, {"infer", RightInference},
	{"shared-memory", RightSharedMemory}, {"model-config", RightModelConfig}, {"index", RightIndex},
	{"control", RightControl}, {"model-repository", RightControl | RightIndex}, {"statistics", RightStatistics},
	{"trace", RightTrace}, {"logging", RightLogging}, {"metrics", RightMetrics},
	{"read", RightMetadata | RightModelConfig | RightIndex | RightStatistics}, {"admin", allRights},
}

// serverWide are rights that no model has a part in.
const serverWide = RightSharedMemory | RightLogging | RightMetrics

// whole are rights that, asked for without a model, are about all models at once.
const whole = serverWide | RightControl | RightTrace

// parseRight reads the name of a right or of a group of them.
func parseRight(name string) (Right, error) {
	var names []string
	for _, r := range rightNames {
		if r.name == name {
			return r.right, nil
		}
		names = append(names, r.name)
	}
	if near := modelconfig.Nearest(name, names); near != "" {
		return 0, fmt.Errorf("no action '%s'; did you mean '%s'?", name, near)
	}
	return 0, fmt.Errorf("no action '%s'; there are %s", name, strings.Join(names, ", "))
}

// String is the right's name, or its members' names.
func (r Right) String() string {
	var names []string
	for _, n := range rightNames {
		if n.right == r && n.name != "infer" {
			return n.name
		}
		if n.right&r != 0 && n.right&(n.right-1) == 0 && n.name != "infer" {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ", ")
}

// rightOf is the right that a call needs.
func rightOf(env *infer.Envelope) Right {
	switch env.Action {
	case infer.ActionHealth:
		return RightHealth
	case infer.ActionMetadata:
		return RightMetadata
	case infer.ActionInference:
		return RightInference
	case infer.ActionSharedMemory:
		return RightSharedMemory
	case infer.ActionModelConfig:
		return RightModelConfig
	case infer.ActionModelRepository:
		if env.Change {
			return RightControl
		}
		return RightIndex
	case infer.ActionStatistics:
		return RightStatistics
	case infer.ActionTrace:
		return RightTrace
	case infer.ActionLogging:
		return RightLogging
	case infer.ActionMetrics:
		return RightMetrics
	}
	return allRights
}
