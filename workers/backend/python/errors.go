package python

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

// codes are the codes of answers, which are those of enum Code, proto/worker/worker.proto.
var codes = map[uint8]infer.Code{
	uint8(worker.Code_CANCELLED): infer.Cancelled, uint8(worker.Code_UNKNOWN): infer.Unknown,
	uint8(worker.Code_INVALID_ARGUMENT): infer.InvalidArg, uint8(worker.Code_NOT_FOUND): infer.NotFound,
	uint8(worker.Code_ALREADY_EXISTS): infer.AlreadyExists, uint8(worker.Code_PERMISSION_DENIED): infer.PermissionDenied,
	uint8(worker.Code_RESOURCE_EXHAUSTED): infer.ResourceExhausted, uint8(worker.Code_UNIMPLEMENTED): infer.Unsupported,
	uint8(worker.Code_INTERNAL): infer.Internal, uint8(worker.Code_UNAVAILABLE): infer.Unavailable,
	uint8(worker.Code_UNAUTHENTICATED): infer.Unauthenticated,
}

// codeNumber is the number of a code.
func codeNumber(c infer.Code) uint8 {
	for n, code := range codes {
		if code == c {
			return n
		}
	}
	return uint8(worker.Code_INTERNAL)
}

// codeOf is the code of an answer that is an error.
func codeOf(code uint8) infer.Code {
	if c, ok := codes[code]; ok {
		return c
	}
	return infer.Internal
}

// numberOf is the code of an error, as answers to calls have it.
func numberOf(err error) uint8 {
	code := infer.CodeOf(err)
	for number, c := range codes {
		if c == code {
			return number
		}
	}
	return uint8(worker.Code_INTERNAL)
}
