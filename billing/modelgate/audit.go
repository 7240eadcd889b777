package modelgate

import (
	"maps"
	"net/http"
	"slices"
)

// The bounds of what is kept of an audit event.
const (
	maxMetadata  = 20  // members of its metadata
	maxAuditText = 300 // bytes of each text
)

// fit is a text as it may be stored and shown.
func fit(text string) string { return cut(Redact(text), maxAuditText) }

// texts is what of an object is text, the first members by name.
func texts(o object) map[string]string {
	kept := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if text, ok := o[name].(string); ok && len(kept) < maxMetadata {
			kept[fit(name)] = fit(text)
		}
	}
	return kept
}

// Asked is the method and the path of the request that leads to such an event;
// both are empty where the event does not say enough.
func (e AuditEvent) Asked() (method, path string) {
	group := e.GroupID
	if e.TargetType == "group" {
		group = e.TargetID
	}
	asked := map[string]struct{ method, before, id, after string }{
		"group.update":  {http.MethodPatch, "/groups/", group, ""},
		"group.delete":  {http.MethodDelete, "/groups/", group, ""},
		"limit.update":  {http.MethodPatch, "/groups/", group, "/limits"},
		"key.create":    {http.MethodPost, "/groups/", group, "/keys"},
		"key.update":    {http.MethodPatch, "/keys/", e.TargetID, ""},
		"key.revoke":    {http.MethodDelete, "/keys/", e.TargetID, ""},
		"credit.top_up": {http.MethodPost, "/groups/", group, "/top-ups"},
		"credit.adjust": {http.MethodPost, "/groups/", group, "/adjustments"},
	}[e.Action]
	switch {
	case e.Action == "group.create":
		return http.MethodPost, "/groups"
	case asked.id == "" || !ValidID(asked.id):
		return "", ""
	}
	return asked.method, asked.before + asked.id + asked.after
}
