package infer

import "net/netip"

// Action is what a call wants to do, as far as rights and limits are concerned.
// Source: the categories of the original's restricted APIs.
type Action uint8

// The actions.
const (
	ActionHealth Action = iota
	ActionMetadata
	ActionInference
	ActionSharedMemory
	ActionModelConfig
	ActionModelRepository
	ActionStatistics
	ActionTrace
	ActionLogging
)

// String is the name in the restricted-API flags.
func (a Action) String() string {
	return [...]string{"health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics",
		"trace", "logging"}[a]
}

// Envelope is all that is known of a call before its body is read.
type Envelope struct {
	Protocol  string // "http" or "grpc"
	Action    Action
	Model     string // "" where the call names none
	Version   string
	RequestID string // from headers; the body's id is not read yet
	Remote    netip.AddrPort
	Unix      bool  // came over a Unix socket
	BodySize  int64 // as announced; -1: unknown
	Streaming bool  // the caller takes any number of responses
	Opened    int64 // Now when Open was called, where requests may be traced; else 0
	// Header gives the first value of a header or metadata key, "" where absent. It
	// is valid during Open only.
	Header func(key string) string
}
