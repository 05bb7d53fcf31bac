# SPDX-License-Identifier: Apache-2.0
"""The management page: files for a browser, logins for it, and figures that change while one looks.

Everything that the page does goes through the management API (vibemq/admin/api), with its rights. What only a page
needs is here: `door.py` lets it in, `files.py` has what it is made of, `sampler.py` and `rings.py` measure rates and
remember an hour of them, `live.py` shows them. The page itself (static/) is plain ES modules, which a browser runs as
they lie here: no build step, no library, nothing from another host.
"""
