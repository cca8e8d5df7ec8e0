package pipeline

import (
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// TargetHeader names the model, or model/version, that answers an inference in place of
// the one that its path or message names. Envoy sets it for aliases and canaries whose
// name it can't change in a gRPC message, and for mirrored calls; it takes away what
// callers send (docs/0013-control-plane.md). Who may call what is decided for the target,
// so a caller without Envoy wins nothing by it.
const TargetHeader = "x-sluice-target"

// retarget notes what a mesh says of an inference: where its sequence lives, and its target,
// which it puts in place of the path's model.
func retarget(env *infer.Envelope) {
	if env.Action != infer.ActionInference || env.Header == nil {
		return
	}
	env.Placement = infer.ParsePlacement(env.Header(infer.PlacementHeader))
	target := env.Header(TargetHeader)
	if target == "" {
		return
	}
	env.Target = strings.Clone(target)
	if env.Model != "" {
		model, version := targetOf(env.Target)
		env.Model = model
		if version != "" {
			env.Version = version
		}
	}
}

// targetOf splits model/version.
func targetOf(target string) (model, version string) {
	model, version, _ = strings.Cut(target, "/")
	return model, version
}

// aim puts the target in place of the message's model. Without a version of its own the
// target takes what the message says.
func aim(req *infer.Request) {
	if req.Envelope == nil || req.Envelope.Target == "" {
		return
	}
	model, version := targetOf(req.Envelope.Target)
	req.Model = model
	if version != "" {
		req.Version = version
	}
}
