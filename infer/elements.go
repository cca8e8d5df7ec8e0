package infer

import "encoding/binary"

// CheckBytes says whether the data of a BYTES input has as many elements as its shape,
// each whole; an error is InvalidArg. It reads each length once. prefix is the request's
// (Request.Prefix).
// Source: ValidateBytesInputs of the original, with its texts.
func CheckBytes(prefix, input, model string, want int64, data []byte) error {
	n := int64(0)
	for len(data) > 0 {
		if len(data) < 4 {
			return Errorf(InvalidArg, "%sincomplete string length indicator for inference input '%s' for model '%s', expecting 4 "+
				"bytes but only %d bytes available. Please make sure the string length indicator is in one buffer.", prefix, input, model, len(data))
		}
		if n++; n > want {
			return Errorf(InvalidArg, "%sunexpected number of string elements %d for inference input '%s' for model '%s', expecting %d",
				prefix, n, input, model, want)
		}
		size := int64(binary.LittleEndian.Uint32(data))
		data = data[4:]
		if size > int64(len(data)) {
			if n < want { // the original counts this element as the last one
				break
			}
			return Errorf(InvalidArg, "incomplete string data for inference input '%s', expecting string of length %d but only %d bytes available",
				input, size, len(data))
		}
		data = data[size:]
	}
	if n != want {
		return Errorf(InvalidArg, "%sexpected %d string elements for inference input '%s' for model '%s', got %d", prefix, want, input, model, n)
	}
	return nil
}
