package redis

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache/cachetest"

	"github.com/sluice-serve/sluice/cache"
)

// executable is where a real redis-server is; "" with the reason where there is none.
func executable() (path, why string) {
	if p := os.Getenv("SLUICE_REDIS_SERVER"); p != "" {
		return p, ""
	}
	for _, p := range []string{"../../.cache/redis/usr/bin/redis-server", "/usr/bin/redis-server"} {
		if at, err := filepath.Abs(p); err == nil {
			if _, err := os.Stat(at); err == nil {
				return at, ""
			}
		}
	}
	if p, err := exec.LookPath("redis-server"); err == nil {
		return p, ""
	}
	return "", "no redis-server: scripts/setup.sh redis lays one down"
}

// server is a real redis-server of one test.
type server struct {
	t    *testing.T
	cmd  *exec.Cmd
	port string
	args []string
}

// start runs a server on a free port and waits until it answers.
func start(t *testing.T, args ...string) *server {
	t.Helper()
	if _, why := executable(); why != "" {
		t.Skip(why)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port), args: args}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.run()
	t.Cleanup(s.kill)
	return s
}

func (s *server) run() {
	s.t.Helper()
	path, _ := executable()
	s.cmd = exec.Command(path, append([]string{"--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.t.TempDir(),
		"--maxmemory", "64mb", "--logfile", "/dev/null"}, s.args...)...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		if answer, err := s.say("PING"); err == nil && (answer == "+PONG" || strings.HasPrefix(answer, "-NOAUTH")) {
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("redis-server does not answer")
		}
		wait(s.t, 10*time.Millisecond)
	}
}

// kill ends the server; it may be frozen, or gone.
func (s *server) kill() {
	if s.cmd.Process == nil || s.cmd.ProcessState != nil {
		return
	}
	if err := s.cmd.Process.Kill(); err == nil {
		_ = s.cmd.Wait() // it says that it was killed
	}
}

func (s *server) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// say sends a command in the inline form and gives the first line of the answer.
func (s *server) say(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", "127.0.0.1:"+s.port, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // nothing of it matters once it has answered
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func wait(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// open makes a level on a port.
func open(t *testing.T, port string, change func(*Config)) *Cache {
	t.Helper()
	cfg, err := ParseConfig(map[string]string{"host": "127.0.0.1", "port": port, "budget": "200"})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	c, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// rig is a level that the test's end closes.
func rig(t *testing.T, port string, change func(*Config)) (*Cache, *cachetest.Rig) {
	c := open(t, port, change)
	t.Cleanup(func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return c, &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
}
