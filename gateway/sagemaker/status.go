package sagemaker

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

// memoryTexts are parts of errors that tell of too little memory. The platform then
// unloads another model and tries again.
// Source: SageMakerMMECheckOOMError of the original; the last is its text where
// --model-load-gpu-limit is reached, which it does not look for.
var memoryTexts = []string{"CUDA out of memory", "CUDA_OUT_OF_MEMORY", "Out of memory", "Out Of Memory", "out of memory", "MemoryError",
	"OutOfMemory", "Dst tensor is not initialized", "Src tensor is not initialized", "CNMEM_STATUS_OUT_OF_MEMORY",
	"CUDNN_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "Failed to allocate memory",
	"failed to allocate memory", "No space left on device", "model loading is rejected"}

// outOfMemory says that an error tells of too little memory. Its text may hold names that
// a client chose, so that OOM must be a word of its own, else a ROOM had it.
func outOfMemory(err error) bool {
	text := err.Error()
	return slices.ContainsFunc(memoryTexts, func(part string) bool { return strings.Contains(text, part) }) || hasWord(text, "OOM")
}

// hasWord says that text has part with no letter, digit or underscore beside it.
func hasWord(text, part string) bool {
	for from := 0; ; {
		at := strings.Index(text[from:], part)
		if at < 0 {
			return false
		}
		at += from
		end := at + len(part)
		if (at == 0 || !isWord(text[at-1])) && (end == len(text) || !isWord(text[end])) {
			return true
		}
		from = at + 1
	}
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

// invokeStatus is the status of a failed /models/{name}/invoke: the original knows 400 and
// 507 only. What it never answers, who calls and how much, has its own. What a client did
// wrong is never 507, whatever it wrote: the platform unloads other models for that.
func invokeStatus(err error) int {
	switch code := infer.CodeOf(err); {
	case code == infer.Unauthenticated || code == infer.PermissionDenied || code == infer.ResourceExhausted:
		return httpapi.Status(code)
	case code != infer.InvalidArg && code != infer.NotFound && outOfMemory(err):
		return 507
	}
	return 400
}

// loadStatus is that of the other calls of /models.
func loadStatus(err error) int {
	switch code := infer.CodeOf(err); {
	case code == infer.AlreadyExists:
		return 409
	case code == infer.InvalidArg && outOfMemory(err): // a load's faults have that code
		return 507
	}
	return invokeStatus(err)
}

func answer(reply *httpapi.Reply, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	reply.Answer("application/json", b)
	return nil
}

func sortModels(all []oneModel) {
	slices.SortFunc(all, func(a, b oneModel) int { return strings.Compare(a.Name, b.Name) })
}
