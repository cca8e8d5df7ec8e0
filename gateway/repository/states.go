package repository

import (
	"fmt"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
)

const (
	stateFolder = "initial_state" // of a model's folder
	maxStates   = 1 << 30         // bytes of a version's files
)

// initialStates reads the files that implicit states begin with.
// Source: initial_state.data_file of message ModelSequenceBatching.State,
// proto/modelconfig/model_config.proto.
func (p *Plan) initialStates(v *VersionPlan) error {
	left := int64(maxStates)
	for i, st := range v.Spec.Config.GetSequenceBatching().GetState() {
		for _, init := range st.InitialState {
			name := init.GetDataFile()
			if name == "" || v.States[name] != nil {
				continue
			}
			data, err := p.Folder.Read(stateFolder+"/"+name, left)
			if err != nil {
				fault := modelconfig.Faults{{Path: fmt.Sprintf("sequence_batching.state[%d]", i),
					Msg: fmt.Sprintf("initial state of '%s': %s", st.InputName, err)}}
				return p.Source.Locate(infer.Errorf(infer.CodeOf(err), "%w", fault))
			}
			if v.States == nil {
				v.States = map[string][]byte{}
			}
			v.States[name] = data
			left -= int64(len(data))
		}
	}
	return nil
}

// States are the files that implicit states begin with, by their data_file. They are
// read-only.
func (m *Model) States() map[string][]byte { return m.states }
