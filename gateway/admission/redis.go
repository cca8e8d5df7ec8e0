package admission

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	redisclient "github.com/redis/go-redis/v9"

	"github.com/sluice-serve/sluice/cache/redis"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// The scripts' texts. Draw and claim begin with what chooses a key.
var (
	//go:embed lua/choose.lua
	chooseText string
	//go:embed lua/draw.lua
	drawText string
	//go:embed lua/claim.lua
	claimText string

	drawScript, claimScript = chooseText + drawText, chooseText + claimText
)

// Redis says where limits are shared.
type Redis struct {
	Config redis.Config
}

// ParseRedis reads the settings of --limits-redis: those of the cache's Redis but ttl,
// and password_file. Its errors are InvalidArg.
func ParseRedis(settings map[string]string) (*Redis, error) {
	known := slices.DeleteFunc(append(redis.Settings(), "password_file"), func(s string) bool { return s == "ttl" })
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if !slices.Contains(known, name) {
			return nil, infer.Errorf(infer.InvalidArg, "--limits-redis: there is no setting '%s': want one of %s", name, strings.Join(known, ", "))
		}
	}
	if settings["host"] == "" || settings["port"] == "" {
		return nil, infer.Errorf(infer.InvalidArg, "--limits-redis: give host=HOST,port=PORT")
	}
	settings = maps.Clone(settings)
	if file := settings["password_file"]; file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, infer.Errorf(infer.InvalidArg, "--limits-redis: password_file: %w", err)
		}
		if settings["password"] = strings.TrimSpace(string(text)); settings["password"] == "" {
			return nil, infer.Errorf(infer.InvalidArg, "--limits-redis: password_file: %s: %w", file, configfile.ErrEmpty)
		}
	}
	delete(settings, "password_file")
	c, err := redis.ParseConfig(settings)
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "--limits-redis: %w", err)
	}
	return &Redis{Config: c}, nil
}

// open starts the link. Redis need not be there.
func (r *Redis) open(ctx context.Context, l *Limits) (*link, error) {
	client, err := r.Config.Client()
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "--limits-redis: %w", err)
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	budget := r.Config.Budget
	if budget <= 0 {
		budget = redis.DefaultBudget
	}
	s := &redisStore{client: client, id: hex.EncodeToString(id), budget: budget, prefix: r.Config.Prefix,
		drawing: redisclient.NewScript(drawScript), claiming: redisclient.NewScript(claimScript)}
	return newLink(ctx, l, s, r.Config.Prefix, budget), nil
}

// redisStore asks by scripts, which Redis runs one at a time.
type redisStore struct {
	client            *redisclient.Client
	id                string // of this gateway among the claims
	budget            time.Duration
	prefix            string // of all keys
	drawing, claiming *redisclient.Script
	loaded            bool
}

// exchangeBudgets is how many budgets an exchange may take before Redis counts as gone; no call
// waits for that.
const exchangeBudgets = 20

func (s *redisStore) exchange(ctx context.Context, qs []question, answers []answer) error {
	ctx, cancel := context.WithTimeout(ctx, max(exchangeBudgets*s.budget, 100*time.Millisecond))
	defer cancel()
	if len(qs) == 0 {
		return s.client.Ping(ctx).Err()
	}
	for range 2 {
		if err := s.load(ctx); err != nil {
			return err
		}
		err := s.pipeline(ctx, qs, answers)
		if err == nil || !redisclient.HasErrorPrefix(err, "NOSCRIPT") {
			return err
		}
		s.loaded = false // Redis was started anew
	}
	return fmt.Errorf("Redis does not keep scripts")
}

func (s *redisStore) load(ctx context.Context) error {
	if s.loaded {
		return nil
	}
	for _, script := range []*redisclient.Script{s.drawing, s.claiming} {
		if err := script.Load(ctx, s.client).Err(); err != nil {
			return err
		}
	}
	s.loaded = true
	return nil
}

// pipeline sends all questions at once. NOSCRIPT is the answer to all or to none.
func (s *redisStore) pipeline(ctx context.Context, qs []question, answers []answer) error {
	pipe := s.client.Pipeline()
	replies := make([]*redisclient.Cmd, len(qs))
	for i := range qs {
		q := &qs[i]
		keys := s.keys(q.key)
		if q.held {
			replies[i] = s.claiming.EvalSha(ctx, pipe, keys, s.id, q.limit, q.used, q.want, claimLife.Milliseconds())
			continue
		}
		replies[i] = s.drawing.EvalSha(ctx, pipe, keys, strconv.FormatFloat(q.rate, 'g', -1, 64),
			strconv.FormatFloat(q.burst, 'g', -1, 64), q.give, q.least, q.want)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for i, r := range replies {
		numbers, err := r.Int64Slice()
		if err != nil || len(numbers) != 3 {
			return fmt.Errorf("a script's answer is not three numbers: %v, %w", r, err)
		}
		answers[i] = answer{got: numbers[0], left: numbers[1], key: int(min(max(numbers[2], 0), keysOfLimit))}
	}
	return nil
}

// keysOfLimit is under how many keys a limit may stand, of which one is in use.
const keysOfLimit = 4

// keys are the keys under which a limit may stand: its own, and those for when values that no gateway
// writes stand there. All of them begin with the prefix, and are in the same slot of a Redis Cluster.
func (s *redisStore) keys(own string) []string {
	keys := make([]string, keysOfLimit)
	keys[0] = own
	for i := 1; i < keysOfLimit; i++ {
		keys[i] = otherKey(s.prefix, own, i+1)
	}
	return keys
}

// otherKey is the key number n, from 2 on, of the limit whose own key is given.
func otherKey(prefix, own string, n int) string {
	return prefix + "limit/" + strconv.Itoa(n) + ":{" + own + "}"
}

func (s *redisStore) close() error { return s.client.Close() }
