// Package redistest runs a real redis-server for tests, on a free port, and breaks it.
package redistest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// executable is where a real redis-server is; "" with the reason where there is none.
func executable() (path, why string) {
	if p := os.Getenv("SLUICE_REDIS_SERVER"); p != "" {
		return p, ""
	}
	_, here, _, _ := runtime.Caller(0)
	for _, p := range []string{filepath.Join(filepath.Dir(here), "../../.cache/redis/usr/bin/redis-server"), "/usr/bin/redis-server"} {
		if _, err := os.Stat(p); err == nil {
			return p, ""
		}
	}
	if p, err := exec.LookPath("redis-server"); err == nil {
		return p, ""
	}
	return "", "no redis-server: scripts/setup.sh redis lays one down"
}

// Server is a real redis-server of one test.
type Server struct {
	t    *testing.T
	cmd  *exec.Cmd
	Port string
	args []string
}

// Start runs a server on a free port and waits until it answers. Its end is the test's. It
// skips where there is no redis-server.
func Start(t *testing.T, args ...string) *Server {
	t.Helper()
	if _, why := executable(); why != "" {
		t.Skip(why)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, Port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port), args: args}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.Run()
	t.Cleanup(s.Kill)
	return s
}

// Run starts the server again, on its port.
func (s *Server) Run() {
	s.t.Helper()
	path, _ := executable()
	s.cmd = exec.Command(path, append([]string{"--port", s.Port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.t.TempDir(),
		"--maxmemory", "64mb", "--logfile", "/dev/null"}, s.args...)...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		if answer, err := s.Say("PING"); err == nil && (answer == "+PONG" || strings.HasPrefix(answer, "-NOAUTH")) {
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("redis-server does not answer")
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.t.Context().Done():
		}
	}
}

// Kill ends the server; it may be frozen, or gone.
func (s *Server) Kill() {
	if s.cmd.Process == nil || s.cmd.ProcessState != nil {
		return
	}
	if err := s.cmd.Process.Kill(); err == nil {
		_ = s.cmd.Wait() // it says that it was killed
	}
}

// Signal sends a signal.
func (s *Server) Signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Say sends a command in the inline form and gives the first line of the answer.
func (s *Server) Say(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", "127.0.0.1:"+s.Port, time.Second)
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
