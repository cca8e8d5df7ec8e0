package sequence

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// FromConfig reads sequence_batching of a validated config. files are the initial
// states of the model's folder by their data_file.
func FromConfig(cfg *modelconfig.ModelConfig, model schedule.Model, files map[string][]byte) (Config, error) {
	s := cfg.GetSequenceBatching()
	c := Config{Model: model, Idle: microseconds(s.GetMaxSequenceIdleMicroseconds()), Iterative: s.GetIterativeSequence()}
	if d := s.GetDirect(); d != nil {
		c.Direct = Direct{Utilization: float64(d.GetMinimumSlotUtilization()), MaxQueueDelay: microseconds(d.GetMaxQueueDelayMicroseconds())}
	}
	if o := s.GetOldest(); o != nil {
		c.Oldest = &Oldest{Candidates: int(o.GetMaxCandidateSequences()), MaxQueueDelay: microseconds(o.GetMaxQueueDelayMicroseconds()),
			PreserveOrdering: o.GetPreserveOrdering()}
		for _, p := range o.GetPreferredBatchSize() {
			c.Oldest.Preferred = append(c.Oldest.Preferred, int(p))
		}
	}
	for _, in := range s.GetControlInput() {
		if len(in.GetControl()) > 1 {
			return c, infer.Errorf(infer.InvalidArg, "sequence batching control tensor '%s' is specified for multiple control kinds for %s",
				in.GetName(), model.Name)
		}
		for _, control := range in.GetControl() {
			c.Controls = append(c.Controls, controlOf(in.GetName(), control))
		}
	}
	for _, st := range s.GetState() {
		c.States = append(c.States, stateOf(cfg, st, files))
	}
	return c, nil
}

func controlOf(name string, c *modelconfig.ModelSequenceBatching_Control) Control {
	out := Control{Name: name}
	switch c.GetKind() {
	case modelconfig.ModelSequenceBatching_Control_CONTROL_SEQUENCE_START:
		out.Kind = Start
	case modelconfig.ModelSequenceBatching_Control_CONTROL_SEQUENCE_READY:
		out.Kind = Ready
	case modelconfig.ModelSequenceBatching_Control_CONTROL_SEQUENCE_END:
		out.Kind = End
	case modelconfig.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID:
		out.Kind, out.Datatype = CorrelationID, infer.Datatype(c.GetDataType())
		return out
	}
	le := binary.LittleEndian
	switch {
	case len(c.GetInt32FalseTrue()) == 2:
		v := c.GetInt32FalseTrue()
		out.Datatype = infer.Int32
		out.False, out.True = le.AppendUint32(nil, uint32(v[0])), le.AppendUint32(nil, uint32(v[1]))
	case len(c.GetFp32FalseTrue()) == 2:
		v := c.GetFp32FalseTrue()
		out.Datatype = infer.FP32
		out.False, out.True = le.AppendUint32(nil, math.Float32bits(v[0])), le.AppendUint32(nil, math.Float32bits(v[1]))
	case len(c.GetBoolFalseTrue()) == 2:
		v := c.GetBoolFalseTrue()
		out.Datatype = infer.Bool
		out.False, out.True = boolByte(v[0]), boolByte(v[1])
	}
	return out
}

func boolByte(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}

func stateOf(cfg *modelconfig.ModelConfig, st *modelconfig.ModelSequenceBatching_State, files map[string][]byte) State {
	out := State{Input: st.GetInputName(), Output: st.GetOutputName(), Datatype: infer.Datatype(st.GetDataType()), Dims: st.GetDims(),
		Visible: slices.ContainsFunc(cfg.GetOutput(), func(o *modelconfig.ModelOutput) bool { return o.GetName() == st.GetOutputName() })}
	for _, init := range st.GetInitialState() {
		out.InitialDims = init.GetDims()
		if f := init.GetDataFile(); f != "" {
			out.Initial = files[f]
			if out.Initial == nil {
				out.Initial = []byte{} // its size is checked
			}
			continue
		}
		// zeros of the initial state's own shape
		out.Initial = zeros(out.Datatype, out.InitialDims)
	}
	return out
}

// zeros is nil where the shape is none that memory holds.
func zeros(d infer.Datatype, shape []int64) []byte {
	n, err := infer.Elements(shape)
	size := d.Size()
	if d == infer.Bytes {
		size = 4
	}
	if err != nil || n > maxState/max(size, 1) {
		return []byte{}
	}
	return make([]byte, n*size)
}

// microseconds converts a wire field; what no Duration can hold is the longest one.
func microseconds(us uint64) time.Duration {
	if us > math.MaxInt64/uint64(time.Microsecond)/4 {
		return math.MaxInt64 / 4
	}
	return time.Duration(us) * time.Microsecond
}
