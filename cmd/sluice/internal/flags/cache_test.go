package flags

import (
	"maps"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway"
)

func TestCacheConfig(t *testing.T) {
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"TRITONCACHE_REDIS_USERNAME": "eve", "TRITONCACHE_REDIS_PASSWORD": "env,pass"}[name]
		return v, ok
	}
	for _, c := range []struct {
		args []string
		want gateway.CacheConfig
	}{
		{[]string{"--cache-config=local,size=1048576", "--cache-directory=/x"}, gateway.CacheConfig{"local": {"size": "1048576"}}},
		{[]string{"--cache-config", "local,size=5,ttl=1m"}, gateway.CacheConfig{"local": {"size": "5", "ttl": "1m"}}},
		{[]string{"--response-cache-byte-size=7"}, gateway.CacheConfig{"local": {"size": "7"}}},
		{[]string{"--cache-config=redis,host=h", "--cache-config=redis,port=6379"},
			gateway.CacheConfig{"redis": {"host": "h", "port": "6379", "user": "eve", "password": "env,pass"}}},
		{[]string{"--cache-config=redis,host=h,port=1,user=bob,password=a,b=c,db=2", "--cache-config=local,size=1"},
			gateway.CacheConfig{"redis": {"host": "h", "port": "1", "user": "bob", "password": "a,b=c", "db": "2"}, "local": {"size": "1"}}},
	} {
		s, err := ParseServe(append([]string{"--model-repository=/m"}, c.args...), env)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if !maps.EqualFunc(s.Config.Cache, c.want, func(a, b map[string]string) bool { return maps.Equal(a, b) }) {
			t.Errorf("%q: got %v, want %v", c.args, s.Config.Cache, c.want)
		}
	}
	for flag, want := range map[string]string{"local": "No cache specified.", ",": "No cache specified.", "local,size": "option format is '<cache name>,<setting>=<value>'",
		"local,size=1,colour=red": "size is '1,colour=red'", "local,colour=red": "has no setting 'colour'", "disk,size=1": "there is no cache 'disk'",
		"redis,host=h": "didn't specify address", "redis,host=h,port=1,pool_size=none": "pool_size is 'none'"} {
		if _, err := ParseServe([]string{"--model-repository=/m", "--cache-config=" + flag}, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", flag, err, want)
		}
	}
}
