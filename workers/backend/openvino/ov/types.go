package ov

// Type is an element type. The numbers are those of ov_element_type_e.
type Type int

// The types that tensors of the protocol have.
const (
	Boolean Type = 1
	BF16    Type = 2
	F16     Type = 3
	F32     Type = 4
	F64     Type = 5
	I8      Type = 7
	I16     Type = 8
	I32     Type = 9
	I64     Type = 10
	U8      Type = 16
	U16     Type = 17
	U32     Type = 18
	U64     Type = 19
	String  Type = 23
)

// MaxRank is how many dimensions a tensor may have here.
const MaxRank = 32

// Range is a dimension: from Min to Max, which are equal where it is fixed. Max -1 is no bound.
type Range struct{ Min, Max int64 }

// Any is a dimension of any size.
var Any = Range{0, -1}

// Fixed says that there is one size.
func (r Range) Fixed() bool { return r.Min == r.Max }

// Has says that a dimension of this size is in the range.
func (r Range) Has(n int64) bool { return n >= r.Min && (r.Max < 0 || n <= r.Max) }

// Port is an input or output of a model.
type Port struct {
	Name  string // "": it has none
	Type  Type
	Shape []Range // nil: not even how many dimensions is known
}

// Tensor is an input of a run, or an output.
type Tensor struct {
	Index int // of the model's inputs or outputs
	Type  Type
	Shape []int64
	// Data is where it lies, aligned to its type. Of an output nil: OpenVINO allocates it, and Run sets Type, Shape
	// and Data, which are valid until the next Run or Release.
	Data []byte
}

// Error is a failure of OpenVINO, or of this layer.
type Error struct {
	Code int // ov_status_e, negative
	Text string
}

// Error is the text.
func (e *Error) Error() string { return e.Text }
