package proxy

import (
	"encoding/json"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/route"
)

const (
	// templateTokens are those that a chat template or a prompt of the model may add.
	templateTokens = 8 << 10
	// tokensPerByte of a body: normalization makes some characters longer.
	tokensPerByte = 4
	// imageTokens is the maximum of an image (package weights), and maxImages the maximum
	// number of images of a request (package engine).
	imageTokens, maxImages = 2 << 10, 64
	// seenTemplate are the tokens of a template that count as seen.
	seenTemplate = 256
	// seenPerSecond is how many tokens of each answer count as seen in a second, after the first seenAnswer.
	// Its bytes are no measure: a Mac may send any number, and thoughts are not sent. Faster engines lose
	// nothing: what they report beyond it counts for their Mac.
	seenPerSecond, seenAnswer = 128, 256
	// unknownContext is the context length of a model whose length is unknown.
	unknownContext = 1 << 20
)

// allowanceOf returns how many tokens a request can use at most. A Mac may have been stolen:
// its counts are believed up to here only.
func allowanceOf(path string, e outline, body []byte, candidates []*route.Model) agentapi.TokenCount {
	context := int64(0)
	for _, m := range candidates {
		context = max(context, m.Facts().Context)
	}
	if context == 0 {
		context = unknownContext
	}
	prompt, generated := context, context
	if e.Previous == "" && e.Reference == "" { // stored items are in the prompt, but not in the body
		prompt = min(prompt, tokensPerByte*int64(len(body))+templateTokens+imageTokens*e.images)
	}
	if e.MaxTokens > 0 {
		generated = min(generated, e.MaxTokens)
	}
	answers := int64(max(1, e.Choices))
	switch path {
	case dialect.PathEmbeddings, dialect.PathRerank, dialect.PathRerankV2, dialect.PathScore:
		return agentapi.TokenCount{Prompt: prompt * int64(max(1, e.Inputs))}
	}
	return agentapi.TokenCount{Prompt: prompt * answers, Generated: generated * answers}
}

// estimateOf estimates the tokens of a request's prompt: that of an image is at most what an image
// has, however many bytes it has, and a query is read with each document.
func estimateOf(e outline, body []byte) int64 {
	return 1 + (bytesRead(e, body)-e.beyond)/bytesPerToken
}

// bytesRead are those of a body, with those of a query for each document.
func bytesRead(e outline, body []byte) int64 {
	return int64(len(body)) + int64(e.Common)*int64(max(0, e.Inputs-1))
}

// seen is what a gateway sees of the tokens of a request by itself, without a report of a Mac.
type seen struct{ prompt, answers, generated int64 }

// seenOf returns what is seen of a request that can use as many tokens. The stored items that a prompt
// continues are not seen.
func seenOf(e outline, body []byte, most agentapi.TokenCount) seen {
	prompt := bytesRead(e, body) - e.imageBytes + imageTokens*e.images + seenTemplate
	return seen{prompt: min(prompt, most.Prompt), answers: int64(max(1, e.Choices)), generated: most.Generated}
}

// after returns how many tokens are seen at most after a Mac had the request for that long.
func (s seen) after(d time.Duration) int64 {
	return s.prompt + int64(min(float64(s.generated), float64(s.answers)*(seenAnswer+seenPerSecond*d.Seconds())))
}

// imagesIn counts the images of a conversation, and their bytes: one at a URL takes few bytes and many
// tokens. beyond are the bytes of the others that are more than their tokens.
func imagesIn(messages json.RawMessage) (n, all, beyond int64) {
	for message := range openai.Elements(messages) {
		for name, content := range openai.Members(message) {
			if string(name) != "content" {
				continue
			}
			for part := range openai.Elements(content) {
				if n < maxImages && isImage(part) {
					n++
					all += int64(len(part))
					beyond += max(0, int64(len(part))-bytesPerToken*imageTokens)
				}
			}
		}
	}
	return n, all, beyond
}

// isImage reports whether a content part is an image, in any of the APIs.
func isImage(part json.RawMessage) bool {
	var kind json.RawMessage
	for name, value := range openai.Members(part) {
		if string(name) == "type" {
			kind = value // the backend rejects anything but a string
		}
	}
	switch string(openai.Text(kind)) {
	case "image_url", "input_image", "image":
		return true
	}
	return false
}

// atMost returns the counts that are not above those of another.
func atMost(c, most agentapi.TokenCount) agentapi.TokenCount {
	return agentapi.TokenCount{Prompt: min(c.Prompt, most.Prompt), Generated: min(c.Generated, most.Generated)}
}
