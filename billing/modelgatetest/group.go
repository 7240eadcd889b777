package modelgatetest

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/shopspring/decimal"
)

// The states of a group. A deleted one is in no list and cannot be changed; its
// id still leads to it.
const (
	groupActive  = "active"
	groupFrozen  = "frozen"
	groupDeleted = "deleted"
)

// periods are what a limit can be for.
var periods = []string{"day", "week", "month"}

// group is one of the partner's customers.
type group struct {
	id, ref, name, status string
	models                []string
	metadata              map[string]string
	version               int
	createdAt, updatedAt  time.Time
	balance               decimal.Decimal // credit left: below zero where usage was faster
	limits                limits
}

// Group is a group on the wire.
type Group struct {
	ID          string            `json:"id"`
	ExternalRef string            `json:"external_ref"`
	Name        string            `json:"name"`
	Status      string            `json:"status"` // active, frozen or deleted
	Models      []string          `json:"models"`
	SpendLimit  string            `json:"spend_limit"`
	Period      string            `json:"period"`
	Metadata    map[string]string `json:"metadata"`
	Version     int               `json:"version"`
	CreatedAt   string            `json:"created_at"`
	UpdatedAt   string            `json:"updated_at"`
}

func (g group) view(currency string) Group {
	view := Group{
		ID: g.id, ExternalRef: g.ref, Name: g.name, Status: g.status, Models: g.models, Metadata: g.metadata, Version: g.version,
		SpendLimit: printMoney(g.limits.spend, currency), Period: g.limits.period, CreatedAt: stamp(g.createdAt), UpdatedAt: stamp(g.updatedAt),
	}
	if view.Models == nil {
		view.Models = []string{}
	}
	if view.Metadata == nil {
		view.Metadata = map[string]string{}
	}
	return view
}

func (g group) place() place { return place{g.createdAt, g.id} }

// group reads the one that the path names, deleted or not.
func (s *session) group() (group, error) {
	g, ok := s.groups.get(s.call.params.ByName("gid"), s.at)
	if !ok {
		return g, problemf(http.StatusNotFound, "group_not_found", "there is no such group")
	}
	return g, nil
}

// liveGroup reads one that may be changed.
func (s *session) liveGroup() (group, error) {
	g, err := s.group()
	if err == nil && g.status == groupDeleted {
		return g, problemf(http.StatusConflict, "group_deleted", "the group is deleted")
	}
	return g, err
}

// openGroup reads one that is active too.
func (s *session) openGroup() (group, error) {
	g, err := s.liveGroup()
	if err == nil && g.status == groupFrozen {
		return g, problemf(http.StatusConflict, "group_frozen", "the group is frozen")
	}
	return g, err
}

// putGroup writes a change.
func (s *session) putGroup(g group) group {
	g.version++
	g.updatedAt = s.now
	s.groups.put(s.tx, g.id, g)
	return g
}

// createGroup is POST /groups. What the body leaves out is the safe default: a
// group that cannot spend.
func createGroup(c *call) (execution, error) {
	f := c.fields()
	g := group{name: f.text("name", 200), ref: f.optional("external_ref", 255), models: f.texts("models"), metadata: f.labels("metadata"), status: groupActive}
	g.limits.period = periods[2]
	if _, there := f.values["spend_limit"]; there {
		g.limits.spend = f.money("spend_limit", false)
	}
	if _, there := f.values["period"]; there {
		g.limits.period = f.choice("period", periods...)
	}
	if err := f.done(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		if err := s.checkModels(g.models); err != nil {
			return reply{}, err
		}
		if err := s.checkLimit(g.limits.spend); err != nil {
			return reply{}, err
		}
		if s.options.ExternalRefMode != RefNone {
			if there := s.byRef(g.ref); there != nil {
				return s.existing(*there)
			}
		}
		g.id, g.createdAt = s.id("grp"), s.now
		g.limits.version, g.limits.updatedAt = 1, s.now
		g = s.putGroup(g)
		s.changed("group.create", "group", g.id, map[string]string{"external_ref": g.ref})
		return created(g.view(s.options.Currency))
	}, nil
}

func (s *session) checkModels(models []string) error {
	for _, model := range models {
		if known := s.options.Models; known != nil && !slices.Contains(known, model) || !modelForm.MatchString(model) {
			p := problemf(http.StatusUnprocessableEntity, "model_unknown", "there is no model %q", model)
			p.param = "models"
			return p
		}
	}
	return nil
}

// byRef is the oldest live group with an external_ref; nil: there is none.
func (s *session) byRef(ref string) *group {
	for g := range s.groups.all(s.at) {
		if ref != "" && g.ref == ref && g.status != groupDeleted {
			return &g
		}
	}
	return nil
}

// existing answers where an external_ref is taken.
func (s *session) existing(g group) (reply, error) {
	if s.options.ExternalRefMode == RefReturnExisting {
		return ok(g.view(s.options.Currency))
	}
	p := problemf(http.StatusConflict, "external_ref_conflict", "a group has this external_ref")
	p.param, p.existingID = "external_ref", g.id
	return reply{}, p
}

// listGroups is GET /groups.
func listGroups(c *call) (execution, error) {
	q, err := c.query("external_ref")
	if err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		page := paginate(q, s.groups.all(s.at), group.place, func(g group) bool {
			return g.status != groupDeleted && s.hasRef(q, g.ref)
		})
		return page.reply(func(g group) any { return g.view(s.options.Currency) })
	}, nil
}

// getGroup is GET /groups/{gid}.
func getGroup(c *call) (execution, error) {
	if err := c.noQuery(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.group()
		if err != nil {
			return reply{}, err
		}
		return ok(g.view(s.options.Currency))
	}, nil
}

// changeGroup is PATCH /groups/{gid}. What changes nothing is no change: it has
// no audit event.
func changeGroup(c *call) (execution, error) {
	f := c.fields()
	name, metadata := f.optional("name", 200), f.labels("metadata")
	status := ""
	if _, there := f.values["status"]; there {
		status = f.choice("status", groupActive, groupFrozen)
	}
	if len(f.values) == 0 {
		f.fail("status", "want a change: name, status or metadata")
	}
	if err := f.done(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.liveGroup()
		if err != nil {
			return reply{}, err
		}
		was := g
		if name != "" {
			g.name = name
		}
		if status != "" {
			g.status = status
		}
		if metadata != nil {
			g.metadata = metadata
		}
		if g.name != was.name || g.status != was.status || !maps.Equal(g.metadata, was.metadata) {
			g = s.putGroup(g)
			s.changed("group.update", "group", g.id, map[string]string{"status": g.status})
		}
		return ok(g.view(s.options.Currency))
	}, nil
}

// deletedGroup is the answer of a deletion.
type deletedGroup struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
}

// deleteGroup is DELETE /groups/{gid}. The group's keys are revoked with it.
func deleteGroup(*call) (execution, error) {
	return func(s *session) (reply, error) {
		g, err := s.group()
		if err != nil {
			return reply{}, err
		}
		if g.status != groupDeleted {
			if !g.balance.IsZero() {
				return reply{}, problemf(http.StatusConflict, "group_has_balance", "the group has a balance of %s", printMoney(g.balance, s.options.Currency))
			}
			g.status = groupDeleted
			s.putGroup(g)
			s.revokeAll(g.id)
			s.changed("group.delete", "group", g.id, nil)
		}
		return ok(deletedGroup{g.id, true})
	}, nil
}
