package repository

import (
	"github.com/sluice-serve/sluice/gateway/schedule/ragged"
	"github.com/sluice-serve/sluice/infer"
)

// Places says that a request may name its tensors in clients' memory to the model's
// instances. Where it is false they are read before the queue, but for those of Brings, and
// written behind it: ensembles, sequences and ragged batches look at tensors themselves, and instances on
// other hosts, or on another device than the memory, can't reach them. So are inputs that a
// worker would copy, if they are large: they then come out of memory that is bounded.
func (m *Model) Places(req *infer.Request) bool {
	if !m.places || m.copied(req) > maxCopied {
		return false
	}
	for i := range req.Inputs {
		if p := &req.Inputs[i].Place; !p.IsZero() && !m.loaded.Reaches(p.Region) {
			return false
		}
	}
	for i := range req.Outputs {
		if p := &req.Outputs[i].Place; !p.IsZero() && !m.loaded.Reaches(p.Region) {
			return false
		}
	}
	return true
}

// Device is the device memory in which outputs of the model may stay for another one, and in
// which it takes them; "": there is none. Answers that a cache keeps lie on the host.
func (m *Model) Device() string {
	if !m.places || m.loaded == nil || m.Config.GetResponseCache().GetEnable() {
		return ""
	}
	return m.loaded.Device()
}

// Reaches says that the model has a Device, and that all of its instances read a tensor in a
// client's memory where it lies.
func (m *Model) Reaches(p infer.Place) bool { return m.Device() != "" && m.loaded.Reaches(p.Region) }

// Brings says that the model's scheduler takes an input in a client's memory, and has it read
// itself where it can't be left there. Ensembles do, but for BYTES, whose lengths are checked.
func (m *Model) Brings(t *infer.Tensor) bool {
	return m.Config.GetEnsembleScheduling() != nil && t.Datatype != infer.Bytes
}

// maxCopied bounds the bytes in clients' memory that an instance copies for one request. A
// file with a hole is as large as its owner says and costs nothing before.
const maxCopied = 16 << 20

// copied is how many bytes of a request's inputs are not read where they lie: indices and
// lengths, and all where requests are gathered.
func (m *Model) copied(req *infer.Request) (n int64) {
	for i := range req.Inputs {
		t := &req.Inputs[i]
		switch {
		case t.Place.IsZero() || t.Place.IsResident(): // what is resident doesn't change, and is bounded by its worker
		case t.Datatype.IsFloat():
			if m.Config.GetDynamicBatching() != nil {
				n += t.Place.Size
			}
		default:
			n += t.Place.Size
		}
	}
	return n
}

func (m *Model) findPlaces() {
	cfg := m.Config
	m.places = cfg.GetSequenceBatching() == nil && cfg.GetEnsembleScheduling() == nil && ragged.FromConfig(cfg) == nil
	for i := range m.inputs {
		m.places = m.places && !m.inputs[i].unlinear
	}
}

// checkPlacedBytes is what can be said of BYTES that were not read: each element has a
// length of four bytes.
func (m *Model) checkPlacedBytes(req *infer.Request, t *infer.Tensor) error {
	want, err := infer.Elements(t.Shape)
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "%sinput '%s' for model '%s': %w", req.Prefix(), t.Name, m.Name, err)
	}
	if most := t.Place.Size / 4; want > most {
		return infer.Errorf(infer.InvalidArg, "%sexpected %d string elements for inference input '%s' for model '%s', got %d", req.Prefix(), want,
			t.Name, m.Name, most)
	}
	return nil
}

// CheckBytes looks at BYTES inputs of a validated request that were read since.
func (m *Model) CheckBytes(req *infer.Request) error {
	for i := range req.Inputs {
		if t := &req.Inputs[i]; t.Datatype == infer.Bytes && t.Place.IsZero() {
			if err := m.checkBytes(req, t); err != nil {
				return err
			}
		}
	}
	return nil
}
