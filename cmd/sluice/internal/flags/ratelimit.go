package flags

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
)

func (s *Serve) rateLimiter() []flag {
	r := &s.Config.RateLimit
	return []flag{
		{name: "rate-limit", arg: "string", def: "off", help: "execution_count: instances whose config has rate_limiter wait for their " +
			"resources, and take turns by their priority. off: such settings are not looked at.", set: func(v string) error {
			switch strings.ToLower(v) {
			case "execution_count":
				r.On = true
			case "off":
				r.On = false
			default:
				return fmt.Errorf("'%s' is not one of off, execution_count", v)
			}
			return nil
		}},
		{name: "rate-limit-resource", arg: "name:count:device", repeat: true, help: "How much there is of a resource, on each device if " +
			"none is named; of one that is not given there is none then. May be given several times. Without any there is as much of " +
			"each as the neediest instance needs.", set: s.rateLimitResource},
	}
}

// rateLimitResource reads <name>:<count> or <name>:<count>:<device>. Of a resource that
// is given twice the smaller count holds, as in the original.
func (s *Serve) rateLimitResource(v string) error {
	parts := strings.Split(v, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return fmt.Errorf("'%s' is not <resource_name>:<count> or <resource_name>:<count>:<device>", v)
	}
	res := ratelimit.Resource{Name: strings.ToLower(parts[0]), Device: ratelimit.Every}
	count, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil {
		return fmt.Errorf("the count '%s' is not an integer of [0, 2147483647]", parts[1])
	}
	res.Count = int64(count)
	if len(parts) == 3 {
		device, err := strconv.ParseUint(parts[2], 10, 31)
		if err != nil {
			return fmt.Errorf("the device '%s' is not a number from 0 on", parts[2])
		}
		res.Device = int(device)
	}
	all := &s.Config.RateLimit.Resources
	for i := range *all {
		if one := &(*all)[i]; one.Name == res.Name && one.Device == res.Device {
			one.Count = min(one.Count, res.Count)
			return nil
		}
	}
	*all = append(*all, res)
	return nil
}
