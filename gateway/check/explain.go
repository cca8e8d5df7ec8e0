package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/gateway/ratelimit"
	"github.com/sluice-serve/sluice/gateway/repository"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// Server is what the flags say that has a part in what a config means.
type Server struct {
	Cache     bool // --cache-config: there is a response cache
	RateLimit bool // --rate-limit=execution_count
	Resources []ratelimit.Resource
	// Agents says what is wrong with the repository agents of the model in dir; nil:
	// nobody knows.
	Agents func(ctx context.Context, name, dir string, cfg *configpb.ModelConfig) error
}

// Note explains one part of a completed config in lines of plain words.
type Note struct {
	Title string // "batching", "queue", …
	Lines []string
}

// Explain says what a completed config does: what forms a batch and when it leaves, what
// the queue policies do, and so on for each part that the config has. It reads nothing
// but its arguments. The graph of an ensemble is drawn elsewhere.
func Explain(cfg *configpb.ModelConfig, s Server) []Note {
	var notes []Note
	add := func(title string, lines []string) {
		if len(lines) > 0 {
			notes = append(notes, Note{title, lines})
		}
	}
	add("versions", versions(cfg))
	add("batching", batching(cfg))
	add("queue", queues(cfg))
	add("sequences", sequences(cfg))
	add("ragged", raggedness(cfg))
	add("answers", answers(cfg))
	add("resources", resources(cfg, &s))
	add("warm-up", warmup(cfg))
	add("cache", caching(cfg, &s))
	add("agents", agents(cfg))
	return notes
}

// plural is "1 row", "2 rows".
func plural[N int | int32 | int64 | uint32 | uint64](n N, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// list is "1, 2 and 3".
func list[T any](items []T, last string) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = fmt.Sprint(item)
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}

// micros is a wire field of microseconds in words; what no Duration holds stays a number.
func micros(us uint64) string {
	if us > 1<<53 {
		return strconv.FormatUint(us, 10) + "µs"
	}
	return (time.Duration(us) * time.Microsecond).String()
}

func versions(cfg *configpb.ModelConfig) []string {
	switch p := cfg.GetVersionPolicy().GetPolicyChoice().(type) {
	case *configpb.ModelVersionPolicy_All_:
		return []string{"all are served"}
	case *configpb.ModelVersionPolicy_Specific_:
		return []string{"served: " + list(p.Specific.GetVersions(), "and")}
	case *configpb.ModelVersionPolicy_Latest_:
		if n := p.Latest.GetNumVersions(); n > 1 {
			return []string{fmt.Sprintf("the %d newest are served", n)}
		}
	}
	return nil // the newest alone, as everybody expects
}

// batching says what forms a batch and when it leaves.
func batching(cfg *configpb.ModelConfig) []string {
	rows := int(cfg.GetMaxBatchSize())
	d := cfg.GetDynamicBatching()
	switch {
	case cfg.GetEnsembleScheduling() != nil || cfg.GetSequenceBatching() != nil:
		return nil
	case d == nil && rows == 0:
		return []string{"none, and no batch dimension: each request is executed alone"}
	case d == nil && (rows == 1 || cfg.GetModelTransactionPolicy().GetDecoupled()):
		return []string{fmt.Sprintf("none: each request, of up to %s, is executed alone", plural(rows, "row"))}
	case d == nil:
		return []string{fmt.Sprintf("none: each request, of up to %s, is executed alone; dynamic_batching { } would join those that wait",
			plural(rows, "row"))}
	case rows == 0:
		return []string{"none: dynamic_batching has nothing to join where max_batch_size is 0"}
	case rows == 1:
		return append([]string{"none: each request is executed alone, since max_batch_size is 1"}, ordered(d.GetPreserveOrdering())...)
	}
	lines := []string{fmt.Sprintf("requests that wait leave together when an instance is free, up to %s", plural(rows, "row"))}
	lines = append(lines, leaving(rows, d.GetPreferredBatchSize(), d.GetMaxQueueDelayMicroseconds())...)
	return append(lines, ordered(d.GetPreserveOrdering())...)
}

func ordered(yes bool) []string {
	if yes {
		return []string{"answers go out in the order in which the requests came"}
	}
	return nil
}

// leaving says when a batch leaves.
func leaving(rows int, preferred []int32, delay uint64) []string {
	var lines []string
	sizes := slices.Sorted(slices.Values(preferred))
	waits := "fewer than " + plural(rows, "row") + " wait"
	if len(sizes) > 1 || len(sizes) == 1 && int(sizes[0]) != rows {
		lines = append(lines, fmt.Sprintf("preferred: %s rows, where so many wait", list(sizes, "or")))
		waits = "other numbers wait"
	}
	if delay == 0 {
		return append(lines, "no request waits for others: what is there leaves")
	}
	return append(lines, fmt.Sprintf("%s up to %s for others; delays in which nobody comes are left out", waits, micros(delay)))
}

// queues says what the queue policies do.
func queues(cfg *configpb.ModelConfig) []string {
	d := cfg.GetDynamicBatching()
	levels := d.GetPriorityLevels()
	if d.GetDefaultQueuePolicy() == nil && levels == 0 {
		return nil
	}
	if levels == 0 {
		return policy(d.GetDefaultQueuePolicy(), false)
	}
	lines := []string{fmt.Sprintf("%s, 1 first; a request that asks for none has %d", priorities(levels), d.GetDefaultPriorityLevel())}
	if fair, err := strconv.Atoi(cfg.GetParameters()["priority_fairness"].GetStringValue()); err == nil && fair > 0 {
		lines = append(lines, fmt.Sprintf("each batch in %d begins with the request that waits longest, so that none starves", fair))
	} else if levels > 1 {
		lines = append(lines, "a level waits as long as there are requests of those before it (parameter priority_fairness changes that)")
	}
	own := slices.Sorted(maps.Keys(d.GetPriorityQueuePolicy()))
	for _, level := range own {
		for i, line := range policy(d.GetPriorityQueuePolicy()[level], true) {
			if i == 0 {
				line = fmt.Sprintf("level %d: %s", level, line)
			}
			lines = append(lines, line)
		}
	}
	if uint64(len(own)) < levels {
		who := "every level: "
		if len(own) > 0 {
			who = "the other levels: "
		}
		for i, line := range policy(d.GetDefaultQueuePolicy(), true) {
			if i == 0 {
				line = who + line
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func priorities(levels uint64) string {
	if levels == 1 {
		return "1 priority"
	}
	return fmt.Sprintf("%d priorities", levels)
}

// policy says what one queue policy does to a request; nil is no policy.
func policy(p *configpb.ModelQueuePolicy, level bool) []string {
	timeout := p.GetDefaultTimeoutMicroseconds()
	wait := "a request waits without limit"
	if timeout > 0 {
		wait = fmt.Sprintf("after %s a request is refused (503, Request timeout expired)", micros(timeout))
		if p.GetTimeoutAction() == configpb.ModelQueuePolicy_DELAY {
			wait = fmt.Sprintf("after %s a request goes on waiting, behind all others", micros(timeout))
			if level {
				wait += " of its level"
			}
		}
	}
	lines := []string{wait}
	switch {
	case p == nil:
		lines = append(lines, "a request's own timeout counts")
	case p.GetAllowTimeoutOverride():
		lines = append(lines, "a request's own timeout counts where it is shorter")
	default:
		lines = append(lines, "a request's own timeout is ignored (allow_timeout_override is not set)")
	}
	if n := p.GetMaxQueueSize(); n > 0 {
		verb := "wait"
		if n == 1 {
			verb = "waits"
		}
		lines = append(lines, fmt.Sprintf("at most %s %s; further ones are refused (503, Exceeds maximum queue size)", plural(n, "request"), verb))
	}
	return lines
}

func answers(cfg *configpb.ModelConfig) []string {
	if cfg.GetModelTransactionPolicy().GetDecoupled() {
		return []string{"any number to a request (decoupled): streaming and generate calls alone can take them"}
	}
	return nil
}

// resources says what the rate limiter shares.
func resources(cfg *configpb.ModelConfig, s *Server) []string {
	var lines []string
	names := map[string]bool{}
	for _, g := range cfg.GetInstanceGroup() {
		var needs []string
		for _, r := range g.GetRateLimiter().GetResources() {
			need := fmt.Sprintf("%d of '%s'", r.GetCount(), r.GetName())
			if r.GetGlobal() {
				need += ", shared by all devices"
			}
			needs, names[r.GetName()] = append(needs, need), true
		}
		if len(needs) == 0 {
			continue
		}
		line := "a batch needs " + list(needs, "and")
		if len(cfg.GetInstanceGroup()) > 1 {
			line = fmt.Sprintf("a batch on group '%s' needs %s", g.GetName(), list(needs, "and"))
		}
		if p := g.GetRateLimiter().GetPriority(); p > 1 {
			line += fmt.Sprintf("; priority %d has 1 turn to %d of priority 1", p, p)
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return nil
	}
	if !s.RateLimit {
		return append(lines, "not looked at: that needs sluice serve --rate-limit=execution_count")
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		lines = append(lines, supply(name, s.Resources))
	}
	return lines
}

// supply says how much there is of a resource.
func supply(name string, given []ratelimit.Resource) string {
	var parts []string
	for _, r := range given {
		switch {
		case !strings.EqualFold(r.Name, name):
		case r.Device == ratelimit.Every:
			parts = append(parts, fmt.Sprintf("%d on each device", r.Count))
		default:
			parts = append(parts, fmt.Sprintf("%d on device %d", r.Count, r.Device))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("of '%s' there is as much as the neediest instance of all models needs (--rate-limit-resource says otherwise)", name)
	}
	return fmt.Sprintf("of '%s' there are %s", name, list(parts, "and"))
}

// warmup says what each instance executes before its version is ready.
func warmup(cfg *configpb.ModelConfig) []string {
	var lines []string
	for _, w := range cfg.GetModelWarmup() {
		var inputs []string
		for _, name := range slices.Sorted(maps.Keys(w.GetInputs())) {
			in := w.GetInputs()[name]
			what := "zeros"
			switch d := in.GetInputDataType().(type) {
			case *configpb.ModelWarmup_Input_RandomData:
				what = "random values"
			case *configpb.ModelWarmup_Input_InputDataFile:
				what = "warmup/" + d.InputDataFile
			}
			inputs = append(inputs, fmt.Sprintf("%s %s of %s", name, shape(in.GetDataType(), in.GetDims()), what))
		}
		line := fmt.Sprintf("'%s'", w.GetName())
		if w.GetBatchSize() > 1 {
			line += fmt.Sprintf(", a batch of %d", w.GetBatchSize())
		}
		if w.GetCount() > 0 {
			line += fmt.Sprintf(", %s", times(w.GetCount()))
		}
		lines = append(lines, line+": "+strings.Join(inputs, ", "))
	}
	if len(lines) > 0 {
		lines = append(lines, "on every instance, before the version is ready; a sample that fails, fails the load")
	}
	return lines
}

func times(n uint32) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// shape is "FP32 [2,3]".
func shape(d configpb.DataType, dims []int64) string {
	words := make([]string, len(dims))
	for i, n := range dims {
		words[i] = strconv.FormatInt(n, 10)
	}
	return strings.TrimPrefix(d.String(), "TYPE_") + " [" + strings.Join(words, ",") + "]"
}

// caching says whether answers are cached.
func caching(cfg *configpb.ModelConfig, s *Server) []string {
	if !cfg.GetResponseCache().GetEnable() {
		return nil
	}
	if !s.Cache {
		return []string{"nothing is cached: response_cache needs sluice serve --cache-config"}
	}
	line := "answers are cached"
	switch ttl := cfg.GetParameters()[repository.CacheTTLParameter].GetStringValue(); ttl {
	case "":
		line += ", for the cache's own time to live"
	case "0":
		line += ", without an end"
	default:
		if _, err := strconv.ParseFloat(ttl, 64); err == nil {
			ttl += "s"
		}
		line += ", for " + ttl
	}
	if tags := cfg.GetParameters()[repository.CacheTagsParameter].GetStringValue(); tags != "" {
		line += "; tags " + tags
	}
	return []string{line}
}

// agents says which repository agents are asked, in their order.
func agents(cfg *configpb.ModelConfig) []string {
	var lines []string
	for _, a := range cfg.GetModelRepositoryAgents().GetAgents() {
		params := slices.Sorted(maps.Keys(a.GetParameters()))
		line := a.GetName()
		switch {
		case a.GetName() == "checksum" && len(params) > 0:
			line += " compares " + list(params, "and")
		case a.GetName() == "checksum":
			line += " has nothing to compare"
		case len(params) > 0:
			line += ", an executable, with " + list(params, "and")
		default:
			line += ", an executable"
		}
		lines = append(lines, line)
	}
	return lines
}
