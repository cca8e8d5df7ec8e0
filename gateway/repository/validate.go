package repository

import (
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// batchNote is the original's hint behind a shape that does not fit.
const batchNote = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each " +
	"input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting " +
	"max_batch_size to zero. See the model configuration docs for more info on max_batch_size."

// Validate checks a request against the model: names, counts, datatypes, shapes, byte
// sizes and priority; every fault is InvalidArg in the original's words. It sets
// req.Rows, drops outputs that are asked for twice, and turns the shapes of inputs with
// reshape into the backend's view. It does not allocate where nothing is wrong, but for
// a reshape to more dimensions.
// What it has found out of a form it does not look at again, unless data decide.
// Source: InferenceRequest::Normalize of the original.
func (m *Model) Validate(req *infer.Request) error {
	if m.token == nil || req.Form == nil {
		return m.validate(req)
	}
	if rows, ok := req.Form.Valid(m.token); ok {
		req.Rows = rows
		return nil
	}
	asked := len(req.Outputs)
	err := m.validate(req)
	if err == nil && len(req.Outputs) == asked {
		req.Form.SetValid(m.token, req.Rows)
	}
	return err
}

func (m *Model) validate(req *infer.Request) error {
	if err := m.checkOutputs(req); err != nil {
		return err
	}
	if err := m.checkNames(req); err != nil {
		return err
	}
	// A step has its ensemble's priority; where that is too large it gets the default.
	if m.priorities > 0 && req.Priority > m.priorities && req.Depth == 0 {
		return infer.Errorf(infer.InvalidArg, "%spriority %d is more than the %d priority levels of '%s'", req.Prefix(), req.Priority,
			m.priorities, m.Name)
	}
	rows, err := m.rows(req)
	if err != nil {
		return err
	}
	for i := range req.Inputs {
		if err := m.checkInput(req, &req.Inputs[i], &m.inputs[m.find(req, i)]); err != nil {
			return err
		}
	}
	req.Rows = rows
	for i := range req.Inputs {
		if in := &m.inputs[m.find(req, i)]; in.reshaped {
			lead := 0
			if m.maxBatch > 0 {
				lead = 1
			}
			req.Inputs[i].Shape = apply(req.Inputs[i].Shape, lead, in.dims, in.reshape)
		}
	}
	return nil
}

func (m *Model) checkOutputs(req *infer.Request) error {
	for i := range req.Outputs {
		if _, ok := m.outputAt[req.Outputs[i].Name]; !ok {
			return infer.Errorf(infer.InvalidArg, "unexpected inference output '%s' for model '%s'", req.Outputs[i].Name, m.Name)
		}
	}
	// More than the model has are some twice.
	for i := 1; i < len(req.Outputs); {
		if i > len(m.outputs) || slices.ContainsFunc(req.Outputs[:i], func(o infer.RequestedOutput) bool { return o.Name == req.Outputs[i].Name }) {
			req.Outputs = slices.Delete(req.Outputs, i, i+1)
			continue
		}
		i++
	}
	return nil
}

// find is the index of request input i in the config, which mostly has the same order.
// -1: the model has no such input.
func (m *Model) find(req *infer.Request, i int) int {
	name := req.Inputs[i].Name
	if i < len(m.inputs) && m.inputs[i].name == name {
		return i
	}
	if at, ok := m.inputAt[name]; ok {
		return at
	}
	return -1
}

// checkNames: every input once, all that are required, none that is not the model's.
func (m *Model) checkNames(req *infer.Request) error {
	if len(req.Inputs) > len(m.inputs) || len(req.Inputs) < m.required {
		if err := m.checkTwice(req); err != nil {
			return err
		}
		return m.wrongCount(req)
	}
	var seen uint64 // of the first 64 inputs
	required := 0
	for i := range req.Inputs {
		at := m.find(req, i)
		if at < 0 {
			return infer.Errorf(infer.InvalidArg, "unexpected inference input '%s' for model '%s'", req.Inputs[i].Name, m.Name)
		}
		if at < 64 && seen&(1<<at) != 0 {
			return twice(req, i)
		}
		if at < 64 {
			seen |= 1 << at
		}
		if !m.inputs[at].optional {
			required++
		}
	}
	if len(m.inputs) > 64 {
		if err := m.checkTwice(req); err != nil {
			return err
		}
	}
	if required < m.required {
		return m.wrongCount(req)
	}
	return nil
}

func (m *Model) checkTwice(req *infer.Request) error {
	seen := make(map[string]bool, len(req.Inputs))
	for i := range req.Inputs {
		if seen[req.Inputs[i].Name] {
			return twice(req, i)
		}
		seen[req.Inputs[i].Name] = true
	}
	return nil
}

func twice(req *infer.Request, i int) error {
	return infer.Errorf(infer.InvalidArg, "%sinput '%s' already exists in request", req.Prefix(), req.Inputs[i].Name)
}

// wrongCount names what came and what is missing.
func (m *Model) wrongCount(req *infer.Request) error {
	var got, missing []string
	for i := range req.Inputs {
		got = append(got, "'"+req.Inputs[i].Name+"'")
	}
	for i := range m.inputs {
		in := &m.inputs[i]
		came := slices.ContainsFunc(req.Inputs, func(t infer.Tensor) bool { return t.Name == in.name })
		if !in.optional && !came {
			missing = append(missing, "'"+in.name+"'")
		}
	}
	const rest = " but got %d inputs for model '%s'. Got input(s) [%s], but missing required input(s) [%s]. Please provide all required input(s)."
	got1, missing1 := strings.Join(got, ","), strings.Join(missing, ",")
	if m.required == len(m.inputs) {
		return infer.Errorf(infer.InvalidArg, "%sexpected %d inputs"+rest, req.Prefix(), len(m.inputs), len(req.Inputs), m.Name, got1, missing1)
	}
	return infer.Errorf(infer.InvalidArg, "%sexpected number of inputs between %d and %d"+rest, req.Prefix(), m.required, len(m.inputs),
		len(req.Inputs), m.Name, got1, missing1)
}

// rows is the batch dimension, equal in all inputs; 1 for models without one.
func (m *Model) rows(req *infer.Request) (int, error) {
	if m.maxBatch == 0 {
		return 1, nil
	}
	rows, found := int64(1), false
	for i := range req.Inputs {
		t := &req.Inputs[i]
		if m.inputs[m.find(req, i)].shape {
			continue
		}
		switch {
		case len(t.Shape) == 0:
			return 0, infer.Errorf(infer.InvalidArg, "%sinput '%s' has no shape but model requires batch dimension for '%s'", req.Prefix(), t.Name, m.Name)
		case found && t.Shape[0] != rows:
			return 0, infer.Errorf(infer.InvalidArg, "%sinput '%s' batch size does not match other inputs for '%s'", req.Prefix(), t.Name, m.Name)
		}
		rows, found = t.Shape[0], true
	}
	switch {
	case rows < 0 || rows > m.maxBatch:
		return 0, infer.Errorf(infer.InvalidArg, "%sinference request batch-size must be <= %d for '%s'", req.Prefix(), m.maxBatch, m.Name)
	case rows == 0:
		return 0, infer.Errorf(infer.InvalidArg, "%sinference request batch-size must be >= 1 for '%s'", req.Prefix(), m.Name)
	}
	return int(rows), nil
}

// checkInput compares datatype, shape and byte size of one input.
func (m *Model) checkInput(req *infer.Request, t *infer.Tensor, in *tensor) error {
	if t.Datatype != in.datatype {
		return infer.Errorf(infer.InvalidArg, "%sinference input '%s' data-type is '%s', but model '%s' expects '%s'", req.Prefix(), t.Name,
			t.Datatype, m.Name, in.datatype)
	}
	lead := 0
	if m.maxBatch > 0 && !in.shape {
		lead = 1
	}
	if len(t.Shape) != lead+len(in.dims) {
		return m.wrongShape(req, t, in)
	}
	for i, want := range in.dims {
		switch got := t.Shape[lead+i]; {
		case got == -1:
			return infer.Errorf(infer.InvalidArg, "%sAll input dimensions should be specified for input '%s' for model '%s', got %s",
				req.Prefix(), t.Name, m.Name, dimsText(t.Shape))
		case want != -1 && want != got:
			return m.wrongShape(req, t, in)
		}
	}
	switch {
	case in.unlinear:
		return nil
	case in.datatype == infer.Bytes:
		if !t.Place.IsZero() { // who reads them counts them
			return m.checkPlacedBytes(req, t)
		}
		return m.checkBytes(req, t)
	}
	want, err := infer.ByteSize(t.Datatype, t.Shape)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "%sinput '%s' for model '%s': %w", req.Prefix(), t.Name, m.Name, err)
	}
	if got := t.Bytes(); want != got {
		return infer.Errorf(infer.InvalidArg, "%sinput byte size mismatch for input '%s' for model '%s'. Expected %d, got %d", req.Prefix(),
			t.Name, m.Name, want, got)
	}
	return nil
}

func (m *Model) wrongShape(req *infer.Request, t *infer.Tensor, in *tensor) error {
	note := ""
	if m.maxBatch > 0 {
		note = batchNote
	}
	return infer.Errorf(infer.InvalidArg, "%sunexpected shape for input '%s' for model '%s'. Expected %s, got %s. %s", req.Prefix(), t.Name,
		m.Name, dimsText(m.fullDims(in)), dimsText(t.Shape), note)
}

// checkBytes walks the elements: as many as the shape says, each whole.
func (m *Model) checkBytes(req *infer.Request, t *infer.Tensor) error {
	want, err := infer.Elements(t.Shape)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "%sinput '%s' for model '%s': %w", req.Prefix(), t.Name, m.Name, err)
	}
	return infer.CheckBytes(req.Prefix(), t.Name, m.Name, want, t.Data)
}
