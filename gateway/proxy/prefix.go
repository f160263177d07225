package proxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/pick"
)

// Of a prompt without structure, the first sharedBytes are likely to be shared with other
// conversations, and the first ownBytes to be specific to one.
const (
	sharedBytes = 512
	ownBytes    = 2 << 10
)

// prefixFor returns the prefix of a tenant's prompt. The hashes are salted per tenant, like
// the engine's prefix cache, so that a tenant cannot detect another one's prompts by the
// choice of the Mac.
func prefixFor(e openai.Envelope, tenant string, keepAttribution bool) pick.Prefix {
	if !keepAttribution {
		e.System = withoutAttribution(e.System)
	}
	return salted(prefixOf(e), tenant, e.CacheSalt)
}

func salted(p pick.Prefix, tenant, salt string) pick.Prefix {
	if tenant == "" && salt == "" {
		return p
	}
	return apart(p, "tenant", tenant, salt)
}

// withAdapter returns the prefix of a prompt that an adapter answers: an engine caches it
// apart from that of the model alone and of other adapters, so that sending them to one
// replica has no use.
func withAdapter(p pick.Prefix, adapter string) pick.Prefix {
	if adapter == "" {
		return p
	}
	return apart(p, "adapter", adapter)
}

// apart returns a prefix that only the same prompt with the same texts has. A client chooses
// prompt and texts, so that pick.Hash, which can be inverted, would let it choose the result.
func apart(p pick.Prefix, texts ...string) pick.Prefix {
	for _, h := range []*uint64{&p.Shared, &p.Own} {
		if *h == 0 {
			continue
		}
		b := binary.BigEndian.AppendUint64(nil, *h)
		for _, text := range texts {
			b = append(binary.BigEndian.AppendUint64(b, uint64(len(text))), text...)
		}
		sum := sha256.Sum256(b)
		*h = max(binary.BigEndian.Uint64(sum[:]), 1)
	}
	return p
}

// prefixOf returns the prefix of a prompt. A client's cache key identifies the conversation
// even if its first message changes, as when a client summarizes earlier ones.
func prefixOf(e openai.Envelope) pick.Prefix {
	p := prefixOfPrompt(e)
	if e.CacheKey != "" {
		p.Own = pick.Hash([]byte("prompt_cache_key"), []byte(e.CacheKey))
		p.Shared = cmp.Or(p.Shared, p.Own)
	}
	return p
}

// space is JSON white space.
const space = " \t\r\n"

// attributionBytes of a system prompt are searched for the attribution block.
const attributionBytes = 256

// withoutAttribution returns a system prompt as the agent uses it: without the leading
// attribution block, which differs between sessions.
func withoutAttribution(system json.RawMessage) json.RawMessage {
	if !bytes.Contains(system[:min(len(system), attributionBytes)], []byte(anthropic.AttributionPrefix)) {
		return system
	}
	first, rest := system, json.RawMessage(nil)
	for block := range openai.Elements(system) {
		first = nil
		for name, value := range openai.Members(block) {
			if string(name) == "text" {
				first = value
			}
		}
		inner := bytes.TrimLeft(bytes.TrimLeft(system, space)[1:], space) // after the bracket
		rest = bytes.TrimLeft(inner[len(block):], space+",")
		break
	}
	var text string
	if json.Unmarshal(first, &text) != nil {
		return system // the backend rejects it
	}
	attribution, text := anthropic.CutAttribution(text)
	if attribution == "" {
		return system
	}
	return append([]byte(text), rest...)
}

// prefixOfPrompt returns the prefix of the prompt itself. Tools and system prompt are
// shared between chats, and the first message after them identifies the conversation: both
// stay the same from turn to turn.
func prefixOfPrompt(e openai.Envelope) pick.Prefix {
	if e.Messages == nil {
		return prefixOfText(e.Prompt)
	}
	shared, parts := pick.NewHasher(), 1 // the parts are hashed, not collected: there may be a million
	shared.Add(e.Tools, e.System)
	for message := range openai.Elements(e.Messages) {
		if setsUp(message) {
			shared.Add(message)
			parts++
			continue
		}
		own := shared
		own.Add(message)
		if parts == 1 && len(e.Tools)+len(e.System) == 0 {
			return pick.Prefix{Shared: pick.Hash(message[:min(len(message), sharedBytes)]), Own: own.Sum()}
		}
		return pick.Prefix{Shared: shared.Sum(), Own: own.Sum()}
	}
	if parts == 1 {
		return pick.Prefix{} // there is no message
	}
	return pick.Prefix{Shared: shared.Sum()}
}

// setsUp reports whether a message belongs to the set-up before the conversation.
func setsUp(message json.RawMessage) bool {
	for name, value := range openai.Members(message) {
		if string(name) == "role" {
			return string(value) == `"system"` || string(value) == `"developer"`
		}
	}
	return false
}

// prefixOfText returns the prefix of a plain text prompt.
func prefixOfText(prompt []byte) pick.Prefix {
	if len(prompt) == 0 {
		return pick.Prefix{}
	}
	p := pick.Prefix{Shared: pick.Hash(prompt[:min(len(prompt), sharedBytes)])}
	if len(prompt) >= ownBytes {
		p.Own = pick.Hash(prompt[:ownBytes])
	}
	return p
}
