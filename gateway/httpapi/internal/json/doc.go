// Package json reads and writes the JSON of the v2 inference protocol without
// reflection and without an allocation for each value.
//
// A Scanner walks one document that lies in memory as a whole: the caller asks for
// objects, keys, arrays and values in order and skips what it does not know. Tensor
// data goes straight from text to little-endian bytes (AppendTensor), and back
// (AppendData). Numbers are exact: an integer that does not fit is refused, floats
// are rounded once, to what the datatype holds.
//
// It accepts what clients of the original server may send today and no more: RFC 8259,
// a byte order mark in front, NaN, Inf and Infinity as numbers, bytes that are not
// UTF-8 inside strings, and a NUL byte as the end of the document. Fault texts and
// offsets are the original's, since clients match them.
// Source: answers of the original server 2.51.
//
// Nothing here is safe for use by several goroutines at once; a Scanner may be reused.
package json
