package server

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/metal/wire"
)

// FuzzRequest wants any request of the wire to become one of the engine, or to
// be refused.
func FuzzRequest(f *testing.F) {
	temperature := float32(0.5)
	for _, r := range []*wire.GenerateRequest{
		{Input: &wire.GenerateRequest_Prompt{Prompt: "p"}, MaxTokens: -1, Stop: []string{""}},
		{Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: []int32{-1, 7}}}, Sampling: &wire.Sampling{Temperature: &temperature}},
		{Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", ExtraJson: "{"}}}}},
		{},
	} {
		raw, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := new(wire.GenerateRequest)
		if proto.Unmarshal(raw, r) != nil {
			return
		}
		out, refusal := fromRequest(r)
		inputs := 0
		for _, has := range []bool{out.Prompt != nil, out.Tokens != nil, out.Chat != nil} {
			if has {
				inputs++
			}
		}
		if refusal == nil && (inputs > 1 || out.Sampling == nil) {
			t.Fatalf("%v became %+v", r, out)
		}
	})
}
