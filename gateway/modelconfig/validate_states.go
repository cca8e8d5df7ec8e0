package modelconfig

import (
	"fmt"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// states checks implicit states. What the original leaves out of a config with a warning
// (names that come twice) is a fault here.
// Source: SequenceBatchScheduler::Create of the original; texts likewise where there is one.
func (v *validation) states(states []*modelconfig.ModelSequenceBatching_State) {
	inputs, outputs := map[string]bool{}, map[string]bool{}
	for i, st := range states {
		path := fmt.Sprintf("sequence_batching.state[%d]", i)
		switch {
		case st.InputName == "" || st.OutputName == "":
			v.addf(path, "state %d of model '%s' must have an input_name and an output_name", i, v.cfg.Name)
		case inputs[st.InputName]:
			v.addf(path, "Detected duplicate 'input_name' in the state configuration: '%s.'", st.InputName)
		case outputs[st.OutputName]:
			v.addf(path, "Detected duplicate 'output_name' in the state configuration: '%s'", st.OutputName)
		}
		inputs[st.InputName], outputs[st.OutputName] = true, true
		if st.DataType == modelconfig.DataType_TYPE_INVALID {
			v.addf(path, "state '%s' of model '%s' must specify 'data_type'", st.InputName, v.cfg.Name)
		}
		for _, d := range st.Dims {
			if d < -1 {
				v.addf(path, "state '%s' of model '%s' has dimension %d, want a size, or -1 for any", st.InputName, v.cfg.Name, d)
			}
		}
		v.initialState(path, st)
	}
}

func (v *validation) initialState(path string, st *modelconfig.ModelSequenceBatching_State) {
	if n := len(st.InitialState); n > 1 {
		v.addf(path, "initial_state field for state input '%s' must contain exactly one or zero element. Found '%d' elements.", st.InputName, n)
		return
	}
	for _, init := range st.InitialState {
		if init.Name == "" {
			v.addf(path, "Field 'name' must be set when using initial_state for state input '%s'.", st.InputName)
		}
		if init.DataType != st.DataType {
			v.addf(path, "The data type used for 'initial_state' field of state '%s' does not match the state data type.", st.InputName)
		}
		v.initialDims(path, st, init.Dims)
		if init.StateData == nil {
			v.addf(path, "initial_state setting expects state'%s' to have state_data set", st.InputName)
		}
		if f := init.GetDataFile(); f != "" && !SafePath(f) {
			v.addf(path, "initial state file %q of model '%s' is outside model directory", f, v.cfg.Name)
		}
	}
}

func (v *validation) initialDims(path string, st *modelconfig.ModelSequenceBatching_State, dims []int64) {
	if len(dims) != len(st.Dims) {
		v.addf(path, "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input '%s'. %d != %d",
			st.InputName, len(dims), len(st.Dims))
		return
	}
	for i, d := range dims {
		if d < 0 {
			v.addf(path, "'initial_state' field for state input name '%s' contains variable dimensions.", st.InputName)
			return
		}
		if st.Dims[i] >= 0 && st.Dims[i] != d {
			v.addf(path, "'initial_state' dim for input name '%s' doesn't match 'state' dim description. %d != %d", st.InputName, d, st.Dims[i])
			return
		}
	}
}
