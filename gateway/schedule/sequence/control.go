package sequence

import (
	"encoding/binary"
	"math"

	"github.com/sluice-serve/sluice/infer"
)

// fits refuses an ID that the CORRID control can't tell from others. The original cuts
// it to the tensor's size instead, so that a model takes two sequences for one.
func (c *Control) fits(id infer.Correlation, model string) error {
	switch {
	case c.Kind != CorrelationID || c.Datatype == infer.Bytes:
		return nil
	case id.Str != "":
		return infer.Errorf(infer.InvalidArg, "inference request for sequence %s to model '%s': its CORRID control '%s' of %s takes no string",
			id.Str, model, c.Name, c.Datatype)
	case c.Datatype.Size() == 4 && id.ID > math.MaxUint32:
		return infer.Errorf(infer.InvalidArg, "inference request for sequence %d to model '%s': its CORRID control '%s' of %s has 32 bits",
			id.ID, model, c.Name, c.Datatype)
	}
	return nil
}

// size is how many bytes the element for a request takes; nil is a null request.
func (c *Control) size(req *infer.Request) int {
	switch {
	case c.Kind != CorrelationID:
		return len(c.True)
	case c.Datatype != infer.Bytes:
		return int(c.Datatype.Size())
	case req == nil:
		return 4
	case req.Correlation.IsZero():
		return 4
	}
	return 4 + len(name(req.Correlation))
}

// put appends the element for a request; nil is a null request.
func (c *Control) put(dst []byte, req *infer.Request) []byte {
	yes := false
	switch c.Kind {
	case CorrelationID:
		return c.putID(dst, req)
	case Start:
		yes = req != nil && req.SequenceStart
	case End:
		yes = req != nil && req.SequenceEnd
	case Ready:
		yes = req != nil
	}
	if yes {
		return append(dst, c.True...)
	}
	return append(dst, c.False...)
}

func (c *Control) putID(dst []byte, req *infer.Request) []byte {
	var id infer.Correlation
	if req != nil {
		id = req.Correlation
	}
	switch {
	case c.Datatype == infer.Bytes && id.IsZero():
		return binary.LittleEndian.AppendUint32(dst, 0)
	case c.Datatype == infer.Bytes:
		text := name(id)
		return append(binary.LittleEndian.AppendUint32(dst, uint32(len(text))), text...)
	case c.Datatype.Size() == 4:
		return binary.LittleEndian.AppendUint32(dst, uint32(id.ID))
	}
	return binary.LittleEndian.AppendUint64(dst, id.ID)
}
