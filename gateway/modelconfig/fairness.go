package modelconfig

import (
	"fmt"
	"math"
	"strconv"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// FairnessParameter is the config's parameter that lets every n-th batch of a model with
// priority levels begin with the request that waits longest: a whole number from 1 on.
// The original has no such thing and ignores it.
const FairnessParameter = "priority_fairness"

// Fairness reads the parameter; 0 where there is none, or where it counts for nothing.
func Fairness(cfg *modelconfig.ModelConfig) (int, error) {
	p, ok := cfg.GetParameters()[FairnessParameter]
	if !ok || cfg.GetDynamicBatching().GetPriorityLevels() == 0 {
		return 0, nil
	}
	n, err := strconv.Atoi(p.GetStringValue())
	if err != nil || n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("parameter '%s' is '%s' for %s, want a whole number from 1 on", FairnessParameter, p.GetStringValue(),
			cfg.GetName())
	}
	return n, nil
}

func (v *validation) fairness() {
	if _, err := Fairness(v.cfg); err != nil {
		v.addf("parameters", "%s", err)
	}
}
