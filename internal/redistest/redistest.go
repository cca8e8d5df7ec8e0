// Package redistest runs a real redis-server for tests, on a free port, and breaks it.
package redistest

import (
	"bufio"
	"fmt"
	"math/rand/v2"
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
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed once cmd was waited for
	Port  string
	args  []string
}

// The ports that are tried: none that the system gives to outgoing connections, which could
// take a server's place while it is down.
const lowestPort, ports = 20000, 12000

// FreePort is a port of the loopback address on which nobody listens.
func FreePort(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		port := strconv.Itoa(lowestPort + rand.IntN(ports))
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err != nil {
			continue
		}
		if err = l.Close(); err == nil {
			return port
		}
	}
	t.Fatal(err)
	return ""
}

// Start runs a server on a free port and waits until it answers. Its end is the test's. It
// skips where there is no redis-server.
func Start(t *testing.T, args ...string) *Server {
	t.Helper()
	if _, why := executable(); why != "" {
		t.Skip(why)
	}
	s := &Server{t: t, args: append([]string{"--dir", t.TempDir()}, args...)}
	t.Cleanup(s.Kill)
	var err error
	for range 10 { // somebody may take the port first
		s.Port = FreePort(t)
		if err = s.begin(); err == nil {
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// Run starts the server again, on its port.
func (s *Server) Run() {
	s.t.Helper()
	if err := s.begin(); err != nil {
		s.t.Fatal(err)
	}
}

// begin starts the process and waits until it answers, or has ended because it did not get
// the port.
func (s *Server) begin() error {
	path, _ := executable()
	cmd := exec.Command(path, append([]string{"--port", s.Port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--maxmemory", "64mb", "--logfile", "/dev/null"}, s.args...)...)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it says that it was killed
	}()
	s.cmd, s.ended = cmd, ended
	for end := time.Now().Add(time.Minute); ; {
		answer, err := s.Say("PING")
		select {
		case <-ended:
			return fmt.Errorf("redis-server on port %s ended: %v", s.Port, cmd.ProcessState)
		case <-time.After(10 * time.Millisecond):
		}
		if err == nil && (answer == "+PONG" || strings.HasPrefix(answer, "-NOAUTH")) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("redis-server on port %s does not answer: %s %v", s.Port, answer, err)
		}
	}
}

// Kill ends the server; it may be frozen, or gone.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it has ended already
	<-s.ended
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
