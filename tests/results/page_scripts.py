"""JavaScript by which tests look at a page and press what is in it."""

COUNT = "document.querySelectorAll('{}').length"
LINES = COUNT.format("#points tbody tr")
CLICK = "document.querySelector('{}').click()"
WAIT = "new Promise((done) => setTimeout(done, 300))"
