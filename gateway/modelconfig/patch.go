package modelconfig

import (
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// maxPatchTensors bounds the tensors of a backend's patch.
const maxPatchTensors = 10_000

// patch merges what the backend says of the config into it:
//
//	max_batch_size           the backend's; that the config's is larger is a fault
//	input, output            by name: what the config leaves out is filled in, what it says
//	                         otherwise is a fault; other tensors are added
//	decoupled                the backend's; that the config says otherwise is a fault
//	dynamic_batching,        where the config has no scheduler; it keeps one of the same
//	sequence_batching        kind as it is, and one of another kind is a fault
//	batch_input, batch_output  where the config has none
//
// Source: TritonModel::SetModelConfig and pb_utils.ModelConfig of Triton; texts likewise.
func (c *completion) patch(p *worker.ConfigPatch) {
	cfg := c.cfg
	n := len(p.GetInput()) + len(p.GetOutput()) + len(p.GetBatchInput()) + len(p.GetBatchOutput())
	if n > maxPatchTensors {
		c.faults.addf("", "the backend of model '%s' describes %d tensors, the most is %d", cfg.Name, n, maxPatchTensors)
		return
	}
	c.patchBatch(p)
	internal := c.internalInputs()
	for _, in := range p.GetInput() {
		named := func(t *modelconfig.ModelInput) bool { return t.Name == in.GetName() }
		if at := slices.IndexFunc(cfg.Input, named); at >= 0 {
			c.patchTensor("input", at, cfg.Input[at], in)
		} else if !internal[in.GetName()] {
			cfg.Input = append(cfg.Input, proto.CloneOf(in))
			c.notef("input %q %s %s", in.GetName(), in.GetDataType(), dimsText(in.GetDims()))
		}
	}
	for _, out := range p.GetOutput() {
		named := func(t *modelconfig.ModelOutput) bool { return t.Name == out.GetName() }
		if at := slices.IndexFunc(cfg.Output, named); at >= 0 {
			c.patchTensor("output", at, cfg.Output[at], out)
		} else if !internal[out.GetName()] {
			cfg.Output = append(cfg.Output, proto.CloneOf(out))
			c.notef("output %q %s %s", out.GetName(), out.GetDataType(), dimsText(out.GetDims()))
		}
	}
	if len(cfg.BatchInput) == 0 && len(p.GetBatchInput()) > 0 {
		cfg.BatchInput = cloned(p.GetBatchInput())
		c.notef("batch_input, from the backend")
	}
	if len(cfg.BatchOutput) == 0 && len(p.GetBatchOutput()) > 0 {
		cfg.BatchOutput = cloned(p.GetBatchOutput())
		c.notef("batch_output, from the backend")
	}
	c.patchPolicy(p)
	c.patchScheduler(p)
}

// patchBatch merges max_batch_size.
func (c *completion) patchBatch(p *worker.ConfigPatch) {
	cfg := c.cfg
	if p.MaxBatchSize == nil {
		return
	}
	switch n := p.GetMaxBatchSize(); {
	case n < 0:
		c.faults.addf("max_batch_size", "the backend of model '%s' specifies max_batch_size %d", cfg.Name, n)
	case cfg.MaxBatchSize > n:
		c.faults.addf("max_batch_size",
			"configuration specified max_batch_size %d, but the backend of model '%s' specified max_batch_size %d",
			cfg.MaxBatchSize, cfg.Name, n)
	case cfg.MaxBatchSize < n:
		cfg.MaxBatchSize = n
		c.notef("max_batch_size %d, from the backend", n)
	}
}

// patchTensor completes a tensor of the config by the backend's of the same name.
func (c *completion) patchTensor(what string, at int, have, said proto.Message) {
	h, s := have.ProtoReflect(), proto.Clone(said).ProtoReflect()
	filled := false
	s.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case !h.Has(field):
			h.Set(field, value)
			filled = true
		case !h.Get(field).Equal(value):
			c.contradiction(what, at, field, h, s)
		}
		return true
	})
	if filled {
		c.notef("%s %q, from the backend", what, name(h))
	}
}

// contradiction is the fault of a tensor that the config and the backend describe otherwise.
func (c *completion) contradiction(
	what string, at int, field protoreflect.FieldDescriptor, have, said protoreflect.Message,
) {
	path := what + "[" + strconv.Itoa(at) + "]." + string(field.Name())
	switch field.Name() {
	case "data_type":
		c.faults.addf(path,
			"unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s", c.cfg.Name,
			valueText(field, have), what, name(have), valueText(field, said))
	default:
		c.faults.addf(path,
			"model '%s', tensor '%s': the model expects %s %s but the model configuration specifies %s %s", c.cfg.Name,
			name(have), field.Name(), valueText(field, said), field.Name(), valueText(field, have))
	}
}

// patchPolicy merges the transaction policy.
func (c *completion) patchPolicy(p *worker.ConfigPatch) {
	cfg := c.cfg
	if p.Decoupled == nil || p.GetDecoupled() == cfg.GetModelTransactionPolicy().GetDecoupled() {
		return
	}
	if cfg.GetModelTransactionPolicy().GetDecoupled() || c.opts.Source.Given("model_transaction_policy.decoupled") {
		c.faults.addf("model_transaction_policy.decoupled",
			"model '%s': the backend specifies decoupled %v but the model configuration specifies decoupled %v",
			cfg.Name, p.GetDecoupled(), cfg.GetModelTransactionPolicy().GetDecoupled())
		return
	}
	cfg.ModelTransactionPolicy = &modelconfig.ModelTransactionPolicy{Decoupled: p.GetDecoupled()}
	c.notef("model_transaction_policy decoupled, from the backend")
}

// patchScheduler takes the backend's scheduler where the config has none.
func (c *completion) patchScheduler(p *worker.ConfigPatch) {
	cfg := c.cfg
	if p.GetDynamicBatching() != nil && p.GetSequenceBatching() != nil {
		c.faults.addf("", "the backend of model '%s' specifies both 'dynamic_batching' and 'sequence_batching'", cfg.Name)
		return
	}
	var said string
	switch {
	case p.GetDynamicBatching() != nil:
		said = "dynamic_batching"
	case p.GetSequenceBatching() != nil:
		said = "sequence_batching"
	default:
		return
	}
	have := ""
	switch cfg.SchedulingChoice.(type) {
	case *modelconfig.ModelConfig_DynamicBatching:
		have = "dynamic_batching"
	case *modelconfig.ModelConfig_SequenceBatching:
		have = "sequence_batching"
	case *modelconfig.ModelConfig_EnsembleScheduling:
		have = "ensemble_scheduling"
	}
	switch have {
	case "":
		if said == "dynamic_batching" {
			cfg.SchedulingChoice = &modelconfig.ModelConfig_DynamicBatching{
				DynamicBatching: proto.CloneOf(p.GetDynamicBatching())}
		} else {
			cfg.SchedulingChoice = &modelconfig.ModelConfig_SequenceBatching{
				SequenceBatching: proto.CloneOf(p.GetSequenceBatching())}
		}
		c.notef("%s, from the backend", said)
	case said:
	default:
		c.faults.addf(have,
			"Configuration specified scheduling_choice as '%s', but the backend of model '%s' "+
				"tries to set scheduling_choice as '%s'",
			have, cfg.Name, said)
	}
}

// cloned is a deep copy of a list of messages.
func cloned[M proto.Message](list []M) []M {
	all := make([]M, len(list))
	for i := range list {
		all[i] = proto.CloneOf(list[i])
	}
	return all
}

// name is the field of that name.
func name(m protoreflect.Message) string {
	return m.Get(m.Descriptor().Fields().ByName("name")).String()
}

// valueText shows a field's value as a config has it.
func valueText(field protoreflect.FieldDescriptor, m protoreflect.Message) string {
	v := m.Get(field)
	switch {
	case field.IsList():
		dims := make([]int64, v.List().Len())
		for i := range dims {
			dims[i] = v.List().Get(i).Int()
		}
		return dimsText(dims)
	case field.Kind() == protoreflect.EnumKind:
		if value := field.Enum().Values().ByNumber(v.Enum()); value != nil {
			return string(value.Name())
		}
	}
	return v.String()
}
