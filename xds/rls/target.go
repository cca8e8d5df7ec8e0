package rls

import (
	"net/url"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// service is the v2 protocol's over gRPC.
const service = "/inference.GRPCInferenceService/"

// maxParts is more than the parts of any path of the protocol. A path comes from anybody.
const maxParts = 16

// Target is what a call by this method and path does, and the model that the path names;
// gRPC names models in bodies. What is unknown counts as metadata, which nothing is
// spent on by default.
// Source: the v2 protocol and its extensions.
func Target(_, path string) (infer.Action, string) {
	path, _, _ = strings.Cut(path, "?")
	if method, ok := strings.CutPrefix(path, service); ok {
		return rpc(method), ""
	}
	parts := strings.SplitN(strings.Trim(path, "/"), "/", maxParts)
	if parts[0] != "v2" || len(parts) < 2 {
		return infer.ActionMetadata, ""
	}
	switch parts[1] {
	case "health":
		return infer.ActionHealth, ""
	case "repository":
		model := ""
		if len(parts) > 3 && parts[2] == "models" {
			model = unescape(parts[3])
		}
		return infer.ActionModelRepository, model
	case "systemsharedmemory", "cudasharedmemory":
		return infer.ActionSharedMemory, ""
	case "logging":
		return infer.ActionLogging, ""
	case "trace":
		return infer.ActionTrace, ""
	case "models":
		return ofModel(parts[2:])
	}
	return infer.ActionMetadata, ""
}

// ofModel is Target of what follows /v2/models.
func ofModel(parts []string) (infer.Action, string) {
	if len(parts) == 0 {
		return infer.ActionMetadata, ""
	}
	if len(parts) == 1 && parts[0] == "stats" {
		return infer.ActionStatistics, ""
	}
	model := unescape(parts[0])
	if rest := parts[1:]; len(rest) > 2 && rest[0] == "versions" {
		parts = append([]string{parts[0]}, rest[2:]...)
	}
	if len(parts) < 2 {
		return infer.ActionMetadata, model
	}
	switch parts[1] {
	case "infer", "generate", "generate_stream":
		return infer.ActionInference, model
	case "ready":
		return infer.ActionHealth, model
	case "config":
		return infer.ActionModelConfig, model
	case "stats":
		return infer.ActionStatistics, model
	case "trace":
		return infer.ActionTrace, model
	case "systemsharedmemory", "cudasharedmemory":
		return infer.ActionSharedMemory, ""
	}
	return infer.ActionMetadata, model
}

func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

func rpc(method string) infer.Action {
	switch method {
	case "ModelInfer", "ModelStreamInfer":
		return infer.ActionInference
	case "ServerLive", "ServerReady", "ModelReady":
		return infer.ActionHealth
	case "ModelConfig":
		return infer.ActionModelConfig
	case "ModelStatistics":
		return infer.ActionStatistics
	case "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload":
		return infer.ActionModelRepository
	case "TraceSetting":
		return infer.ActionTrace
	case "LogSettings":
		return infer.ActionLogging
	}
	if strings.Contains(method, "SharedMemory") {
		return infer.ActionSharedMemory
	}
	return infer.ActionMetadata
}
