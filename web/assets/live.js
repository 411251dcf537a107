/* live parts: to come */
