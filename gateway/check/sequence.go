package check

import (
	"fmt"
	"strings"

	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// sequences says where the requests of a sequence go, and what a model is told of it.
func sequences(cfg *configpb.ModelConfig) []string {
	s := cfg.GetSequenceBatching()
	if s == nil {
		return nil
	}
	rows := max(int(cfg.GetMaxBatchSize()), 1)
	var lines []string
	if o := s.GetOldest(); o != nil {
		candidates := int(o.GetMaxCandidateSequences())
		if candidates == 0 {
			candidates = rows
		}
		lines = append(lines, fmt.Sprintf("oldest: an instance has up to %s at a time, further ones wait; one request of each, "+
			"the oldest first, forms a batch of up to %s", plural(candidates, "sequence"), plural(rows, "row")))
		lines = append(lines, leaving(rows, o.GetPreferredBatchSize(), o.GetMaxQueueDelayMicroseconds())...)
		lines = append(lines, ordered(o.GetPreserveOrdering())...)
	} else {
		lines = append(lines, direct(s.GetDirect(), rows)...)
	}
	lines = append(lines, fmt.Sprintf("a sequence without a request for %s is given up", micros(s.GetMaxSequenceIdleMicroseconds())))
	if s.GetIterativeSequence() {
		lines = append(lines, "iterative: a sequence is one request, which the backend may ask to execute again")
	}
	for _, in := range s.GetControlInput() {
		for _, c := range in.GetControl() {
			lines = append(lines, fmt.Sprintf("the model is told %s", told(in.GetName(), c)))
		}
	}
	for _, st := range s.GetState() {
		lines = append(lines, state(st))
	}
	return lines
}

func direct(d *configpb.ModelSequenceBatching_StrategyDirect, rows int) []string {
	lines := []string{fmt.Sprintf("direct: an instance has %s; a sequence keeps its own to the end, further ones wait", plural(rows, "slot"))}
	delay, share := d.GetMaxQueueDelayMicroseconds(), d.GetMinimumSlotUtilization()
	switch {
	case delay == 0 || share == 0:
		lines = append(lines, "a batch leaves with what its slots have when the instance is free")
	default:
		lines = append(lines, fmt.Sprintf("while less than %g of the slots have a request, a batch waits up to %s", share, micros(delay)))
	}
	return lines
}

// told says what a control input holds.
func told(name string, c *configpb.ModelSequenceBatching_Control) string {
	kind := strings.TrimPrefix(c.GetKind().String(), "CONTROL_SEQUENCE_")
	switch {
	case c.GetKind() == configpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID:
		return fmt.Sprintf("CORRID as %s '%s'", strings.TrimPrefix(c.GetDataType().String(), "TYPE_"), name)
	case len(c.GetInt32FalseTrue()) == 2:
		return fmt.Sprintf("%s as INT32 '%s', %d or %d", kind, name, c.Int32FalseTrue[0], c.Int32FalseTrue[1])
	case len(c.GetFp32FalseTrue()) == 2:
		return fmt.Sprintf("%s as FP32 '%s', %g or %g", kind, name, c.Fp32FalseTrue[0], c.Fp32FalseTrue[1])
	case len(c.GetBoolFalseTrue()) == 2:
		return fmt.Sprintf("%s as BOOL '%s', %t or %t", kind, name, c.BoolFalseTrue[0], c.BoolFalseTrue[1])
	}
	return fmt.Sprintf("%s as '%s'", kind, name)
}

// state says what is kept from one request of a sequence to the next.
func state(st *configpb.ModelSequenceBatching_State) string {
	line := fmt.Sprintf("state %s: output '%s' is input '%s' of the next request", shape(st.GetDataType(), st.GetDims()),
		st.GetOutputName(), st.GetInputName())
	begin := "zeros"
	for _, init := range st.GetInitialState() {
		if f := init.GetDataFile(); f != "" {
			begin = "initial_state/" + f
		}
	}
	line += "; at first " + begin
	if st.GetUseGrowableMemory() {
		line += "; it may grow"
	}
	if st.GetUseSameBufferForInputOutput() {
		line += "; in one buffer"
	}
	return line
}

// raggedness says what of a batch is not one row after the other.
func raggedness(cfg *configpb.ModelConfig) []string {
	var lines []string
	for _, in := range cfg.GetInput() {
		switch {
		case in.GetAllowRaggedBatch():
			lines = append(lines, fmt.Sprintf("input '%s' may have another shape in each request of a batch; its elements stand one behind the other", in.GetName()))
		case in.GetIsShapeTensor():
			lines = append(lines, fmt.Sprintf("input '%s' is a shape tensor, one for the whole batch: requests whose values differ don't share one", in.GetName()))
		}
	}
	for _, b := range cfg.GetBatchInput() {
		for _, name := range b.GetTargetName() {
			lines = append(lines, fmt.Sprintf("input '%s' %s %s", name, strings.TrimPrefix(b.GetDataType().String(), "TYPE_"), computed(b)))
		}
	}
	for _, b := range cfg.GetBatchOutput() {
		lines = append(lines, fmt.Sprintf("output %s is cut by the shapes of input %s", quoted(b.GetTargetName()), quoted(b.GetSourceInput())))
	}
	return lines
}

// computed says what a batch_input holds.
func computed(b *configpb.BatchInput) string {
	of := quoted(b.GetSourceInput())
	switch b.GetKind() {
	case configpb.BatchInput_BATCH_ELEMENT_COUNT:
		return "holds the number of elements that each request has in " + of
	case configpb.BatchInput_BATCH_ACCUMULATED_ELEMENT_COUNT:
		return "holds where the elements of each request end in " + of
	case configpb.BatchInput_BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
		return "holds 0, and where the elements of each request end in " + of
	case configpb.BatchInput_BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
		return "has as many elements as the largest request has in " + of
	case configpb.BatchInput_BATCH_ITEM_SHAPE:
		return "holds the shape of each request's " + of
	case configpb.BatchInput_BATCH_ITEM_SHAPE_FLATTEN:
		return "holds the shapes of all requests' " + of + ", one behind the other"
	}
	return "holds " + b.GetKind().String() + " of " + of
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = "'" + n + "'"
	}
	return list(out, "and")
}
