package proxy

import (
	"bytes"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
)

// TestEventsThatFollowOthersAreNotCopied: what a client has not read yet counts once.
func TestEventsThatFollowOthersAreNotCopied(t *testing.T) {
	follow := (&keepAlives{path: dialect.PathResponses, opened: 3}).follower()
	long := strings.Repeat("x", 1<<20)
	block := []byte("event: response.created\ndata: {\"sequence_number\":0}\n\n" +
		"event: response.output_text.delta\ndata: {\"sequence_number\":9,\"delta\":\"" + long + "\"}\n\n" +
		": a comment\n\nevent: other\ndata: {\"sequence_number\":}\n\n")
	var got bytes.Buffer
	var parts [][]byte
	for part := range follow(block) {
		got.Write(part)
		parts = append(parts, part)
	}
	if want := "event: response.output_text.delta\ndata: {\"sequence_number\":11,\"delta\":\"" + long + "\"}\n\n" +
		": a comment\n\nevent: other\ndata: {\"sequence_number\":}\n\n"; got.String() != want {
		t.Errorf("the events are %.120s", got.String())
	}
	copy(block[bytes.Index(block, []byte("xxx")):], "yyy")
	if !bytes.Contains(bytes.Join(parts, nil), []byte("yyy")) {
		t.Error("an event was copied")
	}
	for range follow(block) { // a client that leaves
		break
	}
}
