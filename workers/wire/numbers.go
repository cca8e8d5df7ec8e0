package wire

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// The numbers of the protocol are those of the enumerations in proto/worker, in the byte
// table as well as in messages. Those of package infer may change.

var codes = [...]worker.Code{
	infer.Unknown: worker.Code_UNKNOWN, infer.InvalidArg: worker.Code_INVALID_ARGUMENT, infer.AlreadyExists: worker.Code_ALREADY_EXISTS,
	infer.Cancelled: worker.Code_CANCELLED, infer.Unauthenticated: worker.Code_UNAUTHENTICATED,
	infer.PermissionDenied: worker.Code_PERMISSION_DENIED, infer.NotFound: worker.Code_NOT_FOUND,
	infer.ResourceExhausted: worker.Code_RESOURCE_EXHAUSTED, infer.Internal: worker.Code_INTERNAL,
	infer.Unsupported: worker.Code_UNIMPLEMENTED, infer.Unavailable: worker.Code_UNAVAILABLE,
}

var layouts = [...]worker.Layout{
	infer.ByRow: worker.Layout_BY_ROW, infer.Ragged: worker.Layout_RAGGED, infer.Shared: worker.Layout_SHARED, infer.Computed: worker.Layout_COMPUTED,
}

var datatypes = [...]modelconfig.DataType{
	infer.Bool: modelconfig.DataType_TYPE_BOOL, infer.Uint8: modelconfig.DataType_TYPE_UINT8, infer.Uint16: modelconfig.DataType_TYPE_UINT16,
	infer.Uint32: modelconfig.DataType_TYPE_UINT32, infer.Uint64: modelconfig.DataType_TYPE_UINT64, infer.Int8: modelconfig.DataType_TYPE_INT8,
	infer.Int16: modelconfig.DataType_TYPE_INT16, infer.Int32: modelconfig.DataType_TYPE_INT32, infer.Int64: modelconfig.DataType_TYPE_INT64,
	infer.FP16: modelconfig.DataType_TYPE_FP16, infer.FP32: modelconfig.DataType_TYPE_FP32, infer.FP64: modelconfig.DataType_TYPE_FP64,
	infer.Bytes: modelconfig.DataType_TYPE_STRING, infer.BF16: modelconfig.DataType_TYPE_BF16,
}

// The kinds of parameters in the byte table: the field numbers of Parameter's values.
var kinds = [...]byte{infer.KindBool: 2, infer.KindInt64: 3, infer.KindUint64: 4, infer.KindDouble: 5, infer.KindString: 6}

// noNumber stands in tables for numbers that nothing has.
const noNumber = 0xff

var (
	codeOf     = inverse(codes[:])
	layoutOf   = inverse(layouts[:])
	datatypeOf = inverse(datatypes[infer.Bool:])
	kindOf     = inverse(kinds[:])
)

// inverse is the table from the protocol's numbers, which are small, to indexes of of.
func inverse[T ~int32 | ~byte](of []T) (to [32]byte) {
	for i := range to {
		to[i] = noNumber
	}
	for i, n := range of {
		to[n] = byte(i)
	}
	return to
}

// codeFrom is the code that the protocol has as n.
func codeFrom[T ~int32 | ~byte](n T) (infer.Code, bool) {
	i := indexOf(&codeOf, n)
	return infer.Code(i), i != noNumber
}

func layoutFrom[T ~int32 | ~byte](n T) (infer.Layout, bool) {
	i := indexOf(&layoutOf, n)
	return infer.Layout(i), i != noNumber
}

func datatypeFrom[T ~int32 | ~byte](n T) (infer.Datatype, bool) {
	i := indexOf(&datatypeOf, n)
	return infer.Datatype(i) + infer.Bool, i != noNumber
}

func kindFrom(n byte) (infer.Kind, bool) {
	i := indexOf(&kindOf, n)
	return infer.Kind(i), i != noNumber
}

func indexOf[T ~int32 | ~byte](table *[32]byte, n T) byte {
	if int64(n) < 0 || int64(n) >= int64(len(table)) {
		return noNumber
	}
	return table[n]
}

// datatypeNumber is the protocol's number; that of TYPE_INVALID for what is none.
func datatypeNumber(d infer.Datatype) modelconfig.DataType {
	if int(d) < len(datatypes) {
		return datatypes[d]
	}
	return modelconfig.DataType_TYPE_INVALID
}

// codeNumber is the protocol's number; that of INTERNAL for what is none.
func codeNumber(c infer.Code) worker.Code {
	if int(c) < len(codes) {
		return codes[c]
	}
	return worker.Code_INTERNAL
}

// kindNumber is the protocol's number; noNumber for what is no kind.
func kindNumber(k infer.Kind) byte {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return noNumber
}

// layoutNumber is the protocol's number; noNumber for what is no layout.
func layoutNumber(l infer.Layout) byte {
	if int(l) < len(layouts) {
		return byte(layouts[l])
	}
	return noNumber
}
