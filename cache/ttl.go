package cache

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// maxTTL keeps ends within the clock's range.
const maxTTL = 10 * 365 * 24 * time.Hour

// ParseTTL reads a time to live: seconds as a number, or a duration with its unit like
// "1h30m". It is not negative; what is longer than ten years is ten years.
func ParseTTL(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if n, numErr := strconv.ParseFloat(s, 64); numErr == nil && !math.IsNaN(n) {
		d, err = time.Duration(min(max(n, -1), maxTTL.Seconds())*float64(time.Second)), nil
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("'%s' is no time to live: want seconds, or a duration like 1h30m", s)
	}
	return min(d, maxTTL), nil
}
