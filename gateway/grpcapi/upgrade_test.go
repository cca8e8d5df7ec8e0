package grpcapi

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
)

// TestUpgrade sees a call whose request asked to go over from HTTP/1.1, and one after it.
func TestUpgrade(t *testing.T) {
	r := start(t)
	nc, err := net.Dial("tcp", r.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	want := fp32Request(10000)
	m, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
	head := fmt.Sprintf("POST /inference.GRPCInferenceService/ModelInfer HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc\r\nTE: trailers\r\n"+
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAQAoAAA\r\nContent-Length: %d\r\n\r\n", len(body))
	if _, err := io.WriteString(nc, head+string(body)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(nc)
	answer, err := http.ReadResponse(in, nil)
	if err != nil || answer.StatusCode != 101 {
		t.Fatal(answer, err)
	}
	if _, err := io.WriteString(nc, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(nc, in)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.SetMaxReadFrameSize(1 << 24)
	if err := fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for ended := false; !ended; {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			t.Fatalf("%v %q", f, f.DebugData())
		case *http2.DataFrame:
			got = append(got, f.Data()...)
		case *http2.MetaHeadersFrame:
			if ended = f.StreamEnded(); ended && !strings.Contains(fmt.Sprint(f.RegularFields()), `grpc-status" = "0`) {
				t.Errorf("ended with %v", f.RegularFields())
			}
		}
	}
	var out inference.ModelInferResponse
	if err := proto.Unmarshal(got[5:], &out); err != nil {
		t.Fatal(err)
	}
	checkEcho(t, want, &out)
	r.settled(t)
}
